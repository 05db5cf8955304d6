printf 'sum=0\nwhile read -r number; do sum=$((sum + number)); done < numbers.txt\necho $sum\n' > run.sh
