// Sockets, rings and XDP programs by libxdp and libbpf. All ports share one UMEM, which is cut in two for each port: chunks to
// receive into, which are in its fill ring, and chunks to send from.
#include "xdpref.h"
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xdp/libxdp.h>

static struct xsk_umem *umem;

// again reports whether what failed with EBUSY is to be tried again, after a pause: the kernel frees a queue, and takes a program off,
// some time after the last descriptor is closed.
static bool again(int err, int64_t since)
{
	struct timespec pause = {0, 5000000};
	if (err != -EBUSY || now(CLOCK_MONOTONIC) - since > 10000000000ll)
		return false;
	nanosleep(&pause, 0);
	return true;
}

// attach loads a program that redirects every frame of a queue into the queue's socket: three instructions and the call, the least
// that there can be. The link goes with this process.
static void attach(struct port *p)
{
	p->map = bpf_map_create(BPF_MAP_TYPE_XSKMAP, "xdpref", 4, 4, 64, 0);
	if (p->map < 0)
		fail("XSKMAP: %s", strerror(-p->map));
	struct bpf_insn code[] = {
		{.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16}, // rx_queue_index
		{.code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = p->map},
		{0},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS},
		{.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
		{.code = BPF_JMP | BPF_EXIT},
	};
	char log[4096] = "";
	LIBBPF_OPTS(bpf_prog_load_opts, load, .log_buf = log, .log_size = sizeof log, .prog_flags = opt.sg ? BPF_F_XDP_HAS_FRAGS : 0);
	p->prog = bpf_prog_load(BPF_PROG_TYPE_XDP, "xdpref", "GPL", code, sizeof code / sizeof *code, &load);
	if (p->prog < 0)
		fail("load the XDP program: %s: %s", strerror(-p->prog), log);
	LIBBPF_OPTS(bpf_link_create_opts, link, .flags = opt.generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE);
	int64_t since = now(CLOCK_MONOTONIC);
	do
		p->link = bpf_link_create(p->prog, p->ifindex, BPF_XDP, &link);
	while (p->link < 0 && again(p->link, since));
	if (p->link < 0)
		fail("attach the XDP program to %s: %s", p->name, strerror(-p->link));
}

static void port_open(struct port *p, int number)
{
	struct xsk_socket_config c = {.rx_size = opt.ring, .tx_size = opt.ring};
	c.xdp_flags = opt.generic ? XDP_FLAGS_SKB_MODE : XDP_FLAGS_DRV_MODE;
	c.bind_flags = (opt.wakeup ? XDP_USE_NEED_WAKEUP : 0) | (opt.sg ? XDP_USE_SG : 0) | (opt.zero ? XDP_ZEROCOPY : 0) | (opt.copy ? XDP_COPY : 0);
	if (!opt.default_prog)
		c.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
	p->ifindex = if_nametoindex(p->name);
	if (!p->ifindex)
		fail("there is no interface %s", p->name);
	int64_t since = now(CLOCK_MONOTONIC);
	int err;
	do
		err = xsk_socket__create_shared(&p->xsk, p->name, opt.queue, umem, &p->rx, &p->tx, &p->fill, &p->comp, &c);
	while (err && again(err, since));
	if (err)
		fail("socket on queue %d of %s: %s", opt.queue, p->name, strerror(-err));
	p->fd = xsk_socket__fd(p->xsk);
	// What the kernel has under way in copy mode is bounded by the send buffer.
	int64_t want = (int64_t)opt.ring * opt.chunk;
	int buffer = want < 1 << 29 ? want : 1 << 29;
	if (setsockopt(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer))
		setsockopt(p->fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
	if (opt.budget) // kernels before 6.17 do not know it
		setsockopt(p->fd, SOL_XDP, MAX_TX_SKB_BUDGET, &opt.budget, sizeof opt.budget);
	if (!opt.default_prog) {
		attach(p);
		if ((err = xsk_socket__update_xskmap(p->xsk, p->map)))
			fail("XSKMAP of %s: %s", p->name, strerror(-err));
	}

	uint32_t at;
	uint64_t base = (uint64_t)number * 2 * opt.slots * opt.chunk;
	p->tx_base = base + (uint64_t)opt.slots * opt.chunk;
	if (xsk_ring_prod__reserve(&p->fill, opt.slots, &at) != opt.slots)
		fail("the fill ring has no room for %u chunks", opt.slots);
	for (uint32_t i = 0; i < opt.slots; i++)
		*xsk_ring_prod__fill_addr(&p->fill, at++) = base + (uint64_t)i * opt.chunk;
	xsk_ring_prod__submit(&p->fill, opt.slots);
}

void ports_open(struct port *p)
{
	struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	uint64_t len = (uint64_t)opt.ports * 2 * opt.slots * opt.chunk, page = 2 << 20;
	len = (len + page - 1) & ~(page - 1);
	area = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (opt.huge ? MAP_HUGETLB : 0), -1, 0);
	if (area == MAP_FAILED)
		fail("%lu MiB of memory: %s", (unsigned long)(len >> 20), strerror(errno));
	// The kernel tells late which chunks it has taken from the fill ring: with as many descriptors as chunks there may be no room for one
	// that comes back.
	struct xsk_umem_config c = {.fill_size = 2 * opt.ring, .comp_size = opt.ring, .frame_size = opt.chunk};
	int err = xsk_umem__create(&umem, area, len, &p[0].fill, &p[0].comp, &c);
	if (err)
		fail("UMEM of %lu MiB: %s", (unsigned long)(len >> 20), strerror(-err));
	for (int i = 0; i < opt.ports; i++) {
		p[i].name = opt.ifname[i];
		port_open(&p[i], i);
	}
}

void port_stats(struct port *p, struct xdp_statistics *s)
{
	socklen_t len = sizeof *s;
	memset(s, 0, sizeof *s);
	if (getsockopt(p->fd, SOL_XDP, XDP_STATISTICS, s, &len))
		fail("XDP_STATISTICS of %s: %s", p->name, strerror(errno));
}

// ports_close takes libxdp's program off, which is not a link.
void ports_close(struct port *p)
{
	for (int i = opt.ports - 1; i >= 0; i--)
		xsk_socket__delete(p[i].xsk);
	xsk_umem__delete(umem);
}
