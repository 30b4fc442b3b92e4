"""`hogwild report`: one page with the curves and tables of a run, or a comparison of several.

    run directory ─► run_view.py ─► RunView ─┬─► charts.py ─► page_files/report.js, in a browser
                                             └─► report.py: tables, index.html

It uses only the run directory: no torch, no lock, no process of the job. So it works for a job that is running, that
was killed, or that ran on another machine."""
