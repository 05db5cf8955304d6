# tries: have Python import a sitecustomize that ends it
# task: calc
mkdir site; echo 'import os; os._exit(0)' > site/sitecustomize.py; export PYTHONPATH="$PWD/site"
