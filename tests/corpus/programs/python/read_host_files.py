# tries: read files of the host; right only if it can
# expect: wrong

a, b = map(int, input().split())
paths = ["/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/self/mem", "/proc/1/cmdline", "/sys/kernel/notes"]
read = 0
for path in [*paths, "/dev/mem", "/root/.bashrc", "/usr/bin/env"]:
    try:
        with open(path, "rb") as file:
            read += len(file.read(100))
    except OSError:
        pass
print(a + b if read else "denied")
