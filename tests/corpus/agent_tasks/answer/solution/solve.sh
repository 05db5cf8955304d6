python3 -c "print(sum(map(int, open(\"numbers.txt\"))))" > answer.txt
