// tries: open a file by its number, past every path check
// expect: runtime_error(SIGSYS)

#include <fcntl.h>

int main() {
    alignas(file_handle) char room[sizeof(file_handle) + 8] = {};
    auto* handle = reinterpret_cast<file_handle*>(room);
    handle->handle_bytes = 8;
    handle->handle_type = 1;
    handle->f_handle[0] = 2;
    return open_by_handle_at(AT_FDCWD, handle, O_RDONLY) < 0;
}
