# tries: leave the fences of the message around its source
# expect: compile_error

```python
a, b = map(int, input().split())
print(a + b)
```
