# tries: have Python stay interactive, reading a script from a pipe
# task: calc
echo 'import os; os._exit(0)' > calc.py; export PYTHONINSPECT=1
