// The loops that are measured.
#include "xdpref.h"
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

// kick has the kernel look at the ring of packets to send. In copy mode the call itself sends them, some at a time.
static inline void kick(struct port *p, struct work *w)
{
	if (opt.wakeup && !xsk_ring_prod__needs_wakeup(&p->tx))
		return;
	w->calls++;
	if (sendto(p->fd, 0, 0, MSG_DONTWAIT, 0, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
		fail("send on %s: %s", p->name, strerror(errno));
}

// idle is for a ring of received packets that is empty.
static inline void idle(struct port *p, struct work *w)
{
	w->empty++;
	if (opt.poll) {
		struct pollfd f = {.fd = p->fd, .events = POLLIN};
		w->calls++;
		poll(&f, 1, 10);
	} else if (opt.wakeup && xsk_ring_prod__needs_wakeup(&p->fill)) {
		w->calls++;
		recvfrom(p->fd, 0, 0, MSG_DONTWAIT, 0, 0);
	}
}

// reap takes back what was sent from p's own chunks. They are used in turn, and come back in order.
static inline void reap(struct port *p, uint32_t frags)
{
	uint32_t at, n = xsk_ring_cons__peek(&p->comp, opt.ring, &at);
	if (!n)
		return;
	xsk_ring_cons__release(&p->comp, n);
	p->flight -= n;
	p->free = opt.slots / frags - (p->flight + frags - 1) / frags;
}

// do_send sends packets from chunks that hold them already. A touched one gets its headers and sequence number anew.
void do_send(struct port *p, struct work *w)
{
	uint32_t frags = (opt.size + opt.chunk - 1) / opt.chunk, last = opt.size - (frags - 1) * opt.chunk;
	uint32_t packets = opt.slots / frags, batch = opt.batch;
	if (batch * frags > opt.ring)
		batch = opt.ring / frags;
	bool stamp = w->touch || w->check;
	int64_t start = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID), until = w->ms ? start + (int64_t)w->ms * 1000000 : 0;
	p->free = packets - (p->flight + frags - 1) / frags;
	while ((!w->packets || w->got < w->packets) && !stopping) {
		uint32_t n = batch, at;
		if (w->packets && w->packets - w->got < n)
			n = w->packets - w->got;
		if (p->free < n)
			n = p->free;
		if (n && xsk_ring_prod__reserve(&p->tx, n * frags, &at)) {
			for (uint32_t i = 0; i < n; i++) {
				uint64_t addr = p->tx_base + (uint64_t)p->next * frags * opt.chunk;
				if (stamp) {
					if (w->touch)
						frame_headers(area + addr, opt.size);
					memcpy(area + addr + STAMP, &w->seq, 8);
					w->seq++;
				}
				for (uint32_t k = 0; k < frags; k++) {
					struct xdp_desc *d = xsk_ring_prod__tx_desc(&p->tx, at++);
					d->addr = addr + (uint64_t)k * opt.chunk;
					d->len = k + 1 < frags ? opt.chunk : last;
					d->options = k + 1 < frags ? XDP_PKT_CONTD : 0;
				}
				if (++p->next == packets)
					p->next = 0;
			}
			xsk_ring_prod__submit(&p->tx, n * frags);
			p->free -= n;
			p->flight += n * frags;
			w->got += n;
		}
		kick(p, w);
		reap(p, frags);
		if (until && now(CLOCK_MONOTONIC) >= until)
			break;
	}
	while (p->flight) {
		kick(p, w);
		reap(p, frags);
	}
	w->ns = now(CLOCK_MONOTONIC) - start;
	w->cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	w->bytes = w->got * opt.size;
	w->descs = w->got * frags;
	w->matched = w->touch ? w->got : 0;
}

// A packet that comes in several chunks.
static struct {
	char b[MAX_FRAME];
	uint32_t len;
} whole;

// ours_to_count adds a packet's last descriptor to what was got; len is the length of the whole packet.
static inline bool ours_to_count(struct work *w, uint32_t len)
{
	if (__builtin_expect(len != opt.size, 0)) { // the kernel's own, such as reports of multicast groups
		w->other++;
		return false;
	}
	w->got++;
	return true;
}

// look reads where the packet goes to, as every program that takes packets apart must.
static inline void look(struct work *w, const char *p)
{
	uint16_t type, port;
	memcpy(&type, p + 12, 2);
	memcpy(&port, p + 36, 2);
	w->matched += type == __builtin_bswap16(0x0800) && p[23] == 17 && port == __builtin_bswap16(UDP_PORT);
}

// inspect checks every byte of a packet, or its headers.
static void inspect(struct work *w, const char *p, uint32_t len)
{
	uint64_t seq;
	const char *wrong = frame_check(p, len, opt.size, w->brief, &seq);
	if (wrong) {
		if (!w->bad++)
			fprintf(stderr, "xdpref: packet %lu: its %s is wrong\n", (unsigned long)w->got, wrong);
		return;
	}
	w->checked += w->brief ? HEADER : len;
	if (w->seq != seq)
		w->gaps++;
	w->seq = seq + 1;
}

// gather does what inspect does for packets in several chunks.
static bool gather(const struct xdp_desc *d)
{
	uint32_t n = d->len;
	if (n > sizeof whole.b - whole.len)
		n = sizeof whole.b - whole.len;
	memcpy(whole.b + whole.len, area + d->addr, n);
	whole.len += n;
	return !(d->options & XDP_PKT_CONTD);
}

// do_recv takes packets until the ring is empty (and, live, somebody says stop).
void do_recv(struct port *p, struct work *w)
{
	uint32_t part = 0; // bytes of the packet before this descriptor
	int64_t start = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID), first = 0, end = 0;
	bool fresh = false; // the ring was not empty at the last look
	whole.len = 0;
	for (;;) {
		uint32_t at, fill, n = xsk_ring_cons__peek(&p->rx, opt.batch, &at);
		if (!n) {
			if (!w->live)
				break;
			if (fresh)
				end = now(CLOCK_MONOTONIC);
			fresh = false;
			if (w->packets && w->got >= w->packets)
				break;
			if (stopping) { // what came before is in the ring
				if (!xsk_cons_nb_avail(&p->rx, 1))
					break;
				continue;
			}
			idle(p, w);
			continue;
		}
		if (!first && w->live)
			first = now(CLOCK_MONOTONIC);
		fresh = true;
		if (xsk_ring_prod__reserve(&p->fill, n, &fill) != n)
			fail("the fill ring of %s has no room for what came from it", p->name);
		if (opt.prefetch && w->touch)
			for (uint32_t i = 0; i < n; i++)
				__builtin_prefetch(area + xsk_ring_cons__rx_desc(&p->rx, at + i)->addr);
		for (uint32_t i = 0; i < n; i++) {
			const struct xdp_desc *d = xsk_ring_cons__rx_desc(&p->rx, at++);
			*xsk_ring_prod__fill_addr(&p->fill, fill++) = d->addr;
			if (w->touch && !part)
				look(w, area + d->addr);
			if (w->check)
				gather(d);
			part += d->len;
			if (d->options & XDP_PKT_CONTD)
				continue;
			if (ours_to_count(w, part) && w->check)
				inspect(w, whole.b, whole.len);
			whole.len = part = 0;
		}
		w->descs += n;
		xsk_ring_prod__submit(&p->fill, n);
		xsk_ring_cons__release(&p->rx, n);
	}
	if (!w->live)
		end = now(CLOCK_MONOTONIC);
	w->ns = end - (w->live ? first : start);
	w->cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	w->bytes = w->got * opt.size;
}

static inline void swap(char *p)
{
	uint64_t to = 0, from = 0;
	memcpy(&to, p, 6);
	memcpy(&from, p + 6, 6);
	memcpy(p, &from, 6);
	memcpy(p + 6, &to, 6);
}

// recycle gives what out has sent back to the fill ring of in.
static inline void recycle(struct port *in, struct port *out)
{
	uint32_t at, fill, n = xsk_ring_cons__peek(&out->comp, opt.ring, &at);
	if (!n)
		return;
	if (xsk_ring_prod__reserve(&in->fill, n, &fill) != n)
		fail("the fill ring of %s has no room for what came from it", in->name);
	for (uint32_t i = 0; i < n; i++)
		*xsk_ring_prod__fill_addr(&in->fill, fill++) = *xsk_ring_cons__comp_addr(&out->comp, at++);
	xsk_ring_prod__submit(&in->fill, n);
	xsk_ring_cons__release(&out->comp, n);
	out->flight -= n;
}

// do_forward sends what comes in, as it lies. A touched packet is looked at, and its MAC addresses are swapped.
void do_forward(struct port *in, struct port *out, struct work *w)
{
	uint32_t part = 0;
	int64_t start = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
	for (;;) {
		uint32_t at, tx, n = xsk_ring_cons__peek(&in->rx, opt.batch, &at);
		if (!n) {
			if (out->flight) {
				kick(out, w);
				recycle(in, out);
			} else if (!w->live || (stopping && !xsk_cons_nb_avail(&in->rx, 1))) {
				break;
			} else {
				idle(in, w);
			}
			continue;
		}
		while (!xsk_ring_prod__reserve(&out->tx, n, &tx)) {
			kick(out, w);
			recycle(in, out);
		}
		if (opt.prefetch && w->touch)
			for (uint32_t i = 0; i < n; i++)
				__builtin_prefetch(area + xsk_ring_cons__rx_desc(&in->rx, at + i)->addr, 1);
		for (uint32_t i = 0; i < n; i++) {
			const struct xdp_desc *d = xsk_ring_cons__rx_desc(&in->rx, at++);
			*xsk_ring_prod__tx_desc(&out->tx, tx++) = *d;
			if (w->touch && !part) {
				look(w, area + d->addr);
				swap(area + d->addr);
			}
			part += d->len;
			if (d->options & XDP_PKT_CONTD)
				continue;
			ours_to_count(w, part);
			part = 0;
		}
		w->descs += n;
		xsk_ring_prod__submit(&out->tx, n);
		xsk_ring_cons__release(&in->rx, n);
		out->flight += n;
		kick(out, w);
		recycle(in, out);
	}
	w->ns = now(CLOCK_MONOTONIC) - start;
	w->cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
	w->bytes = w->got * opt.size;
}
