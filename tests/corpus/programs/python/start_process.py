# tries: start a process of its own kind
# expect: runtime_error

import multiprocessing


def work():
    print(3)


multiprocessing.get_context("fork").Process(target=work).start()
