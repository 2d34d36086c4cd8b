"""The comparison is a function of results/: every number of the series beside ours, with a verdict.

| module    | holds                                                                       |
|-----------|-----------------------------------------------------------------------------|
| reference | the published numbers: results/reference/series.json, read and checked      |
| rows      | the subjects of the page, and a row for each number: where ours comes from  |
| modelrows | the rows about trained models                                               |
| heads     | what such a row takes out of a chapter's results                            |
| shelf     | the saved results of one model set; says in words what is not there         |
| verdict   | kinds and tolerances: whether two values agree                              |
| show      | numbers, lists and words as a reader wants them                             |
| words     | what the page says in its own words                                         |
| page      | the page as plain data: sections, lines, notes, counts                      |
| markdown  | the page for a hosting site                                                 |
| webpage   | the page for a browser, in one file that loads nothing                      |

`python -m circuitbook.series` writes the page. Nothing here imports torch.
"""
