"""Looking at a run through its directory or S3 address, while it goes on or later.

records.py          reads a run: configuration, metrics, rollouts
options.py          options of `dojang show`
samples.py          chooses samples by step, outcome, problem and role
diff.py             answers to the same problems at two steps
show.py             `dojang show`: prints them

view.py             `dojang view`: serves the page until Ctrl-C
server.py           Viewer: the server, for Python
security.py         host names, tokens, headers
api.py              routes of the HTTP API
parameters.py       parameters of requests
run_list.py         runs that are shown
viewed_run.py       one of them
run_status.py       whether it goes on
metric_log.py       its metrics as series
index.py            short columns of its rollouts in memory: filters and orders
run_index.py        keeps the index up to date
rollout_columns.py  reads rows of the index from a file
rollout_query.py    filters, orders and counts
rollout_pages.py    tables of rollouts
rollout_page.py     one sample with its texts, tokens, tests and group
parquet_rows.py     reads single rows of Parquet files
token_texts.py      texts and values of tokens
problems.py         problems and their history
search.py           text search in the background
timeline.py         what trainer, engine and workers did when
judge_again.py      a recorded response graded anew; tests of its problem
grading_process.py  the child process that does it
settings.py         configuration, environment, differences of two runs
snippets.py         beginnings of responses
static/             the page

report.py           `dojang report`: a run as one HTML file
report_data.py      its figures, settings and samples
report_page.py      its HTML
svg_chart.py        charts that need no JavaScript
html_text.py        HTML whose text is escaped by construction
"""
