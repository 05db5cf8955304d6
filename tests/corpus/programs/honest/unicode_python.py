# tries: names, texts and output that are not English
# expect: accepted
# input: "1 2\n"
# output: "größe 3 合計 😀\n"

größe, число = map(int, input().split())
print("größe", größe + число, "合計", "\N{GRINNING FACE}")
