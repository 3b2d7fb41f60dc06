// xdpref is AF_XDP as a careful programmer writes it in C with libxdp: an implementation at the other end that is not ours.
//
//	xdpref INTERFACE SIZE CHUNK SLOTS SG
//
// SIZE is that of a frame, CHUNK of a chunk of the UMEM, SLOTS how many to receive into, and as many to send from; SG is 1 for
// frames in several chunks. It prints "ready", and a line of counts for each line that it reads:
//
//	send SEQ PACKETS   sends so many, numbered from SEQ on
//	recv SEQ PACKETS   takes packets until so many of that size have come, numbered from SEQ on
//
// The counts are packets, bytes that were checked and right, packets with a wrong byte, packets that did not follow the one
// before. It ends with its input.
#include "xdpref.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct options opt;
char *area;

void fail(const char *fmt, ...)
{
	va_list a;
	va_start(a, fmt);
	fputs("xdpref: ", stderr);
	vfprintf(stderr, fmt, a);
	fputc('\n', stderr);
	exit(1);
}

// kick has the kernel send what is in the ring, some at a time, and takes back what it has sent.
static uint32_t kick(struct port *p)
{
	if (xsk_ring_prod__needs_wakeup(&p->tx) && sendto(p->fd, 0, 0, MSG_DONTWAIT, 0, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
		fail("send on %s: %s", opt.ifname, strerror(errno));
	uint32_t at, n = xsk_ring_cons__peek(&p->comp, RING, &at);
	if (n)
		xsk_ring_cons__release(&p->comp, n);
	return n;
}

// do_send sends packets from chunks that hold them already, but for the number.
static void do_send(struct port *p, uint64_t seq, uint64_t packets)
{
	uint32_t frags = (opt.size + opt.chunk - 1) / opt.chunk, slots = opt.slots / frags, flight = 0;
	for (uint64_t sent = 0; sent < packets || flight;) {
		uint32_t at, n = packets - sent < BATCH / 8 ? packets - sent : BATCH / 8;
		if (n && flight + n * frags <= opt.slots && xsk_ring_prod__reserve(&p->tx, n * frags, &at)) {
			for (uint32_t i = 0; i < n; i++, sent++, seq++) {
				uint64_t addr = p->tx_base + sent % slots * frags * opt.chunk;
				memcpy(area + addr + STAMP, &seq, 8);
				for (uint32_t k = 0; k < frags; k++) {
					bool last = k + 1 == frags;
					*xsk_ring_prod__tx_desc(&p->tx, at++) = (struct xdp_desc){.addr = addr + (uint64_t)k * opt.chunk,
						.len = last ? opt.size - k * opt.chunk : opt.chunk, .options = last ? 0 : XDP_PKT_CONTD};
				}
			}
			xsk_ring_prod__submit(&p->tx, n * frags);
			flight += n * frags;
		}
		flight -= kick(p);
	}
	printf("%lu 0 0 0\n", (unsigned long)packets);
}

// do_recv takes packets, checks every byte of them and gives their chunks back. Those of another size are the kernel's own, such
// as reports of multicast groups.
static void do_recv(struct port *p, uint64_t seq, uint64_t packets)
{
	char whole[MAX_FRAME];
	uint32_t len = 0;
	uint64_t got = 0, checked = 0, bad = 0, gaps = 0, number;
	while (got < packets) {
		uint32_t at, fill, n = xsk_ring_cons__peek(&p->rx, BATCH, &at);
		if (!n) {
			struct pollfd f = {.fd = p->fd, .events = POLLIN};
			poll(&f, 1, -1);
			continue;
		}
		if (xsk_ring_prod__reserve(&p->fill, n, &fill) != n)
			fail("the fill ring of %s has no room for what came from it", opt.ifname);
		for (uint32_t i = 0; i < n; i++) {
			const struct xdp_desc *d = xsk_ring_cons__rx_desc(&p->rx, at++);
			uint32_t room = sizeof whole - len, part = d->len < room ? d->len : room;
			memcpy(whole + len, area + d->addr, part);
			len += part;
			*xsk_ring_prod__fill_addr(&p->fill, fill++) = d->addr;
			if (d->options & XDP_PKT_CONTD)
				continue;
			if (len == opt.size) {
				const char *wrong = frame_check(whole, len, opt.size, &number);
				got++;
				if (wrong) {
					if (!bad++)
						fprintf(stderr, "xdpref: packet %lu: its %s is wrong\n", (unsigned long)got, wrong);
				} else {
					checked += len;
					gaps += number != seq;
					seq = number + 1;
				}
			}
			len = 0;
		}
		xsk_ring_prod__submit(&p->fill, n);
		xsk_ring_cons__release(&p->rx, n);
	}
	printf("%lu %lu %lu %lu\n", (unsigned long)got, (unsigned long)checked, (unsigned long)bad, (unsigned long)gaps);
}

int main(int argc, char **argv)
{
	static struct port port;
	char line[256];
	if (argc != 6)
		fail("expected INTERFACE SIZE CHUNK SLOTS SG");
	opt = (struct options){argv[1], atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5])};
	port_open(&port);
	uint32_t frags = (opt.size + opt.chunk - 1) / opt.chunk;
	for (uint32_t s = 0; s < opt.slots / frags; s++)
		frame_make(area + port.tx_base + (uint64_t)s * frags * opt.chunk, opt.size, s);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		char op[5];
		unsigned long seq, packets;
		if (sscanf(line, "%4s %lu %lu", op, &seq, &packets) != 3 || (strcmp(op, "send") && strcmp(op, "recv")))
			fail("%s: expected send or recv, a number and how many", line);
		(strcmp(op, "send") ? do_recv : do_send)(&port, seq, packets);
		fflush(stdout);
	}
	xsk_socket__delete(port.xsk);
	return 0;
}
