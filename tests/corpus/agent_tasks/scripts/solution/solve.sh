echo 'print(sum(int(line) for line in open("numbers.txt")))' > main.py
printf 'sum=0\nwhile read -r number; do sum=$((sum + number)); done < numbers.txt\necho $sum\n' > run.sh
