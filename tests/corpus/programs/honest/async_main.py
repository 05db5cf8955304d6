# tries: an asynchronous main
# expect: accepted

import asyncio


async def number(word):
    await asyncio.sleep(0.001)
    return int(word)


async def main():
    print(sum(await asyncio.gather(*map(number, input().split()))))


asyncio.run(main())
