"""`hogwild report`: what a run was, as one page with pictures.

    run directory ─► run_data.py ─► Run ─┬─► columns.py, phase_bars.py ─► learning.py, figures.py, timeline.py ─► PNGs
                                         ├─► config_origin.py, tables.py ─► rows of text
                     several runs ───────┴─► comparison.py, overlays.py
                                                                 report.py: index.html ◄─ page.py ◄─ all of these

It knows the run directory and nothing else: no torch, no lock, no process of the job. So it works on a job that runs,
that was killed, or that came from another machine. Only style.py and what draws (learning, figures, timeline, overlays)
need matplotlib, which is of the `report` extra; `report.py` imports them where it draws."""
