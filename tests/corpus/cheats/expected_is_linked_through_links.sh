# tries: leave a link that leads out of the folder only if links are followed
# task: answer
mkdir a; ln -s .. a/up; ln -s "a/up/..$TESTS/expected.txt" answer.txt
