mkdir results && sort -n numbers.txt | tail -1 > results/answer.txt
