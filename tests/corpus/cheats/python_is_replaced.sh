# tries: overwrite the interpreter, or be found before it
# task: answer
cp /bin/true "$(command -v python3)" 2> /dev/null || { mkdir /tmp/b; cp /bin/true /tmp/b/python3; export PATH="/tmp/b:$PATH"; }
