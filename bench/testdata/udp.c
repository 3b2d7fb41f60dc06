// The reference of the UDP rows: what a careful program in C does with the same system calls as engine/socket.
//
//   udp recv ADDRESS PORT SIZE MILLISECONDS BUFFER CPU   receives batches of 64 into 64 preallocated buffers, used again and
//       again; looks at length and first eight bytes of each; prints "ready", then packets, bytes, wrong ones, ns of
//       wall clock and of processor time
//       With 0 milliseconds it waits for a line of input and then receives what is in the socket's buffer, and nothing later
//   udp send ADDRESS PORT SIZE MILLISECONDS SEGMENTS CPU  sends as fast as it can, SEGMENTS packets in one message; with
//       -MILLISECONDS so many calls
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#define BATCH 64
#define POOL 64
#define MAGIC 0x70e257070bad5eedull

static int64_t now(clockid_t c) {
	struct timespec t;
	clock_gettime(c, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void die(const char *what) {
	perror(what);
	exit(1);
}

static int receive(int fd, size_t size, int64_t ms, int buffer) {
	size_t slot = (size + 63) & ~(size_t)63;
	char *pool = mmap(0, slot * POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	static struct mmsghdr m[BATCH];
	static struct iovec v[BATCH];
	static struct sockaddr_in from[BATCH];
	if (pool == MAP_FAILED) die("mmap");
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer) && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer)) die("SO_RCVBUF");
	puts("ready");
	fflush(stdout);
	uint64_t packets = 0, bytes = 0, bad = 0, polls = 0;
	int64_t start = 0, cpu = 0, end = 0;
	unsigned next = 0;
	if (ms == 0) {
		if (getchar() == EOF) return 1;
		start = now(CLOCK_MONOTONIC);
		cpu = now(CLOCK_THREAD_CPUTIME_ID);
	}
	for (;;) {
		for (int i = 0; i < BATCH; i++) {
			v[i].iov_base = pool + slot * ((next + i) % POOL);
			v[i].iov_len = slot;
			m[i].msg_hdr.msg_iov = &v[i];
			m[i].msg_hdr.msg_iovlen = 1;
			m[i].msg_hdr.msg_name = &from[i];
			m[i].msg_hdr.msg_namelen = sizeof from[i];
		}
		int n = recvmmsg(fd, m, BATCH, MSG_DONTWAIT | MSG_TRUNC, 0);
		if (n < 0) {
			if (errno != EAGAIN) die("recvmmsg");
			n = 0;
		}
		for (int i = 0; i < n; i++) {
			uint64_t magic;
			memcpy(&magic, v[i].iov_base, 8);
			bad += magic != MAGIC || m[i].msg_len != size;
			bytes += m[i].msg_len;
		}
		packets += n;
		next += n;
		if (n == 0 || ms > 0 && (++polls & 15) == 0) {
			int64_t t = now(CLOCK_MONOTONIC);
			if (!start && packets) {
				start = t;
				cpu = now(CLOCK_THREAD_CPUTIME_ID);
				packets = bytes = bad = 0;
			}
			if (!end) end = t + 10 * 1000000000ll; // nobody sends
			if (start && t - start >= ms * 1000000 || !start && t > end) {
				printf("%llu %llu %llu %lld %lld\n", (unsigned long long)packets, (unsigned long long)bytes, (unsigned long long)bad,
				       (long long)(t - start), (long long)(now(CLOCK_THREAD_CPUTIME_ID) - cpu));
				return 0;
			}
		}
	}
}

static int transmit(int fd, struct sockaddr_in *to, size_t size, int64_t ms, int segments) {
	size_t len = size * segments;
	char *buf = malloc(len);
	static struct mmsghdr m[BATCH];
	struct iovec v = {buf, len};
	uint64_t magic = MAGIC;
	memset(buf, 7, len);
	for (int i = 0; i < segments; i++) memcpy(buf + i * size, &magic, 8);
	if (connect(fd, (struct sockaddr *)to, sizeof *to)) die("connect");
	int segment = (int)size, batch = BATCH / segments > 0 ? BATCH / segments : 1;
	if (segments > 1 && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment)) die("UDP_SEGMENT");
	for (int i = 0; i < batch; i++) {
		m[i].msg_hdr.msg_iov = &v;
		m[i].msg_hdr.msg_iovlen = 1;
	}
	for (int64_t end = now(CLOCK_MONOTONIC) + ms * 1000000; ms < 0 ? ms++ : now(CLOCK_MONOTONIC) < end;)
		if (sendmmsg(fd, m, batch, 0) < 0 && errno != ECONNREFUSED) die("sendmmsg");
	return 0;
}

int main(int argc, char **argv) {
	if (argc != 8) {
		fprintf(stderr, "udp recv|send ADDRESS PORT SIZE MILLISECONDS BUFFER|SEGMENTS CPU\n");
		return 2;
	}
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[7]), &set);
	sched_setaffinity(0, sizeof set, &set);
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
	inet_pton(AF_INET, argv[2], &at.sin_addr);
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0) die("socket");
	if (strcmp(argv[1], "recv")) return transmit(fd, &at, atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
	if (bind(fd, (struct sockaddr *)&at, sizeof at)) die("bind");
	return receive(fd, atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
}
