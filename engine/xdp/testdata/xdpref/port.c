// A socket, its rings and an XDP program by libxdp and libbpf. The UMEM is cut in two: chunks to receive into, which are in
// the fill ring, and chunks to send from.
#include "xdpref.h"
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <xdp/libxdp.h>

// again reports whether what failed with EBUSY is to be tried again, after a pause: the kernel frees a queue, and takes a
// program off, some time after the last descriptor is closed.
static bool again(int err, int *tries)
{
	struct timespec pause = {0, 5000000};
	if (err != -EBUSY || ++*tries > 2000)
		return false;
	nanosleep(&pause, 0);
	return true;
}

// attach loads a program that redirects every frame of a queue into the queue's socket. The link goes with this process.
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
	int prog = bpf_prog_load(BPF_PROG_TYPE_XDP, "xdpref", "GPL", code, sizeof code / sizeof *code, &load);
	if (prog < 0)
		fail("load the XDP program: %s: %s", strerror(-prog), log);
	LIBBPF_OPTS(bpf_link_create_opts, link, .flags = XDP_FLAGS_DRV_MODE);
	int err, tries = 0;
	do
		err = bpf_link_create(prog, if_nametoindex(opt.ifname), BPF_XDP, &link);
	while (err < 0 && again(err, &tries));
	if (err < 0)
		fail("attach the XDP program to %s: %s", opt.ifname, strerror(-err));
}

void port_open(struct port *p)
{
	struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	uint64_t half = (uint64_t)opt.slots * opt.chunk;
	area = mmap(0, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		fail("memory: %s", strerror(errno));
	struct xsk_umem *umem;
	struct xsk_umem_config u = {.fill_size = 2 * RING, .comp_size = RING, .frame_size = opt.chunk};
	int err = xsk_umem__create(&umem, area, 2 * half, &p->fill, &p->comp, &u);
	if (err)
		fail("UMEM: %s", strerror(-err));
	struct xsk_socket_config c = {.rx_size = RING, .tx_size = RING, .xdp_flags = XDP_FLAGS_DRV_MODE};
	c.bind_flags = XDP_COPY | XDP_USE_NEED_WAKEUP | (opt.sg ? XDP_USE_SG : 0);
	c.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
	if (!if_nametoindex(opt.ifname))
		fail("there is no interface %s", opt.ifname);
	int tries = 0;
	do
		err = xsk_socket__create_shared(&p->xsk, opt.ifname, 0, umem, &p->rx, &p->tx, &p->fill, &p->comp, &c);
	while (err && again(err, &tries));
	if (err)
		fail("socket on %s: %s", opt.ifname, strerror(-err));
	p->fd = xsk_socket__fd(p->xsk);
	attach(p);
	if ((err = xsk_socket__update_xskmap(p->xsk, p->map)))
		fail("XSKMAP of %s: %s", opt.ifname, strerror(-err));
	p->tx_base = half;
	uint32_t at;
	if (xsk_ring_prod__reserve(&p->fill, opt.slots, &at) != opt.slots)
		fail("the fill ring has no room for %u chunks", opt.slots);
	for (uint32_t i = 0; i < opt.slots; i++)
		*xsk_ring_prod__fill_addr(&p->fill, at++) = (uint64_t)i * opt.chunk;
	xsk_ring_prod__submit(&p->fill, opt.slots);
}
