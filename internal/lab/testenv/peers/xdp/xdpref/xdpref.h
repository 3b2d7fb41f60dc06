// What xdpref.c and frames.c share.
#ifndef XDPREF_H
#define XDPREF_H
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <xdp/xsk.h>

// Older headers than the kernel.
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif
#define MAX_TX_SKB_BUDGET 9 // XDP_MAX_TX_SKB_BUDGET of Linux 6.17

#define MAX_PORTS 2
#define MAX_FRAME 9216
#define HEADER 42  // Ethernet, IPv4, UDP
#define STAMP 42   // sequence number, 8 bytes
#define ORIGIN 50  // number of the slot that it was made in, 4 bytes
#define PATTERN 56 // words of 8 bytes from here; 54 and 55 are 0
#define MIN_FRAME PATTERN
#define UDP_PORT 5001

struct options {
	const char *ifname[MAX_PORTS];
	int ports, queue, cpu;
	uint32_t size, batch, chunk, slots, ring, budget;
	bool poll, wakeup, sg, generic, zero, copy, huge, default_prog, fill, prefetch;
};

struct port {
	const char *name;
	int ifindex, fd, link, prog, map;
	struct xsk_socket *xsk;
	struct xsk_ring_prod fill, tx;
	struct xsk_ring_cons comp, rx;
	uint64_t tx_base;    // of the chunks to send from
	uint32_t next, free; // of packets to send: the next slot, and how many are not with the kernel
	uint64_t flight;     // descriptors of tx that have not come back
	struct xdp_statistics before;
};

// One command: what it is to do and what came of it.
struct work {
	uint64_t packets, ms;
	bool live, touch, check, brief;
	uint64_t seq; // the next sequence number

	uint64_t got, bytes, descs, matched, checked, bad, other, gaps, empty, calls;
	int64_t ns, cpu;
};

extern struct options opt;
extern char *area;
extern volatile bool stopping;

void frame_make(char *p, uint32_t size, uint32_t slot);
void frame_headers(char *p, uint32_t size);
const char *frame_check(const char *p, uint32_t len, uint32_t size, bool brief, uint64_t *seq);

int64_t now(int clock);
void fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

// ports.c
void ports_open(struct port *p);
void port_stats(struct port *p, struct xdp_statistics *s);
void ports_close(struct port *p);

// loops.c
void do_send(struct port *p, struct work *w);
void do_recv(struct port *p, struct work *w);
void do_forward(struct port *in, struct port *out, struct work *w);
#endif
