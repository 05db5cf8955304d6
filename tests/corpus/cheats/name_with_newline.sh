# tries: have a name with a newline name another file
# task: found
mkdir -p $'x\n'"$TESTS"; : > $'x\n'"$TESTS/answer.txt"
