// What the sources of xdpref share.
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

#define MAX_FRAME 9216
#define HEADER 42  // Ethernet, IPv4, UDP
#define STAMP 42   // sequence number, 8 bytes
#define ORIGIN 50  // number of the slot that it was made in, 4 bytes
#define PATTERN 56 // words of 8 bytes from here; 54 and 55 are 0
#define UDP_PORT 5001
#define RING 4096
#define BATCH 64

struct options {
	const char *ifname;
	uint32_t size, chunk, slots;
	bool sg;
};

struct port {
	int fd, map;
	struct xsk_socket *xsk;
	struct xsk_ring_prod fill, tx;
	struct xsk_ring_cons comp, rx;
	uint64_t tx_base; // of the chunks to send from
};

extern struct options opt;
extern char *area;

void frame_make(char *p, uint32_t size, uint32_t slot);
const char *frame_check(const char *p, uint32_t len, uint32_t size, uint64_t *seq);
void port_open(struct port *p);
void fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
#endif
