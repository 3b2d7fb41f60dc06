// Package sys makes every raw system call of Penstock.
//
// Functions are thin and typed. They return errors that wrap an Errno and name the call and its
// argument, so that a message such as "mmap 2 MiB huge pages: cannot allocate memory" needs no
// context from the caller. Calls on a data path (send, receive, futex, epoll) do not allocate and
// return a bare Errno, because the caller counts them in nanoseconds.
//
// Files are grouped by what they serve: memory, sockets, unix sockets with descriptors, events,
// scheduling.
package sys
