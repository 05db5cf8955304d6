"""`dojang data audit`: checks that the verifier agrees with the data.

command          runs the audit and writes the report
sources          reads the dataset and its known answers
options          options of the command
findings         possible findings, graded answers
answers          audits problems with a number or formula as answer
programs         audits problems solved by a program
test_suites      static checks of tests, without running a program
checker_choices  compares the choices of task.checker
grading          records judgements; findings common to all problems
contamination    overlap with an evaluation set
report           summary, tables and JSON
write_clean      writes the dataset without the excluded problems
"""
