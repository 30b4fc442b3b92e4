"""`hogwild report`: one page with the pictures and tables of a run.

    run directory ─► run_data.py ─► Run ─┬─► columns.py ─► figures.py, timeline.py; of several runs overlays.py ─► PNGs
                                         └─► tables.py ─► rows of text
                                                                 report.py: index.html ◄─ page.py ◄─ all of these

It uses only the run directory: no torch, no lock, no process of the job. So it works for a job that is running, that
was killed, or that ran on another machine. Only style.py and the drawing modules (figures, timeline, overlays)
need matplotlib, from the `report` extra; `report.py` imports them when it draws."""
