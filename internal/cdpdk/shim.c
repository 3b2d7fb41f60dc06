//go:build dpdk

#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_log.h>
#include <rte_mbuf_dyn.h>
#include <rte_memory.h>
#include <rte_version.h>

static int op_probe(const char *devargs) { return rte_dev_probe(devargs); }
static int op_remove(struct rte_device *dev) { return rte_dev_remove(dev); }
static int op_promiscuous(uint16_t port, int on) { return on ? rte_eth_promiscuous_enable(port) : rte_eth_promiscuous_disable(port); }

static int op_extmem(void *addr, size_t len, size_t page, int on)
{
	rte_errno = 0;
	int r = on ? rte_extmem_register(addr, len, NULL, 0, page) : rte_extmem_unregister(addr, len);
	return r < 0 ? -ps_reason() : r;
}
static int op_dma(struct rte_device *dev, void *addr, uint64_t iova, size_t len, int on)
{
	rte_errno = 0;
	int r = on ? rte_dev_dma_map(dev, addr, iova, len) : rte_dev_dma_unmap(dev, addr, iova, len);
	return r < 0 ? -ps_reason() : r;
}
static uint16_t op_rx(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n) { return rte_eth_rx_burst(port, queue, m, n); }
static uint16_t op_tx(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n) { return rte_eth_tx_burst(port, queue, m, n); }
static uint16_t op_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n) { return rte_eth_tx_prepare(port, queue, m, n); }

static int op_flow_create(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item *items, const struct rte_flow_action *actions, struct rte_flow **made, struct rte_flow_error *err)
{
	rte_errno = 0;
	*made = rte_flow_create(port, attr, items, actions, err);
	return *made ? 0 : -ps_reason();
}

static int op_rx_queue(uint16_t port, uint16_t queue, int on) { return on ? rte_eth_dev_rx_queue_start(port, queue) : rte_eth_dev_rx_queue_stop(port, queue); }
static int op_tx_queue(uint16_t port, uint16_t queue, int on) { return on ? rte_eth_dev_tx_queue_start(port, queue) : rte_eth_dev_tx_queue_stop(port, queue); }
static int op_rate(uint16_t port, uint16_t queue, uint32_t mbps) { return rte_eth_set_queue_rate_limit(port, queue, mbps); }

struct ps_ops ps_ops = {
	.probe = op_probe, .remove = op_remove, .info = rte_eth_dev_info_get, .configure = rte_eth_dev_configure,
	.rx_setup = rte_eth_rx_queue_setup, .tx_setup = rte_eth_tx_queue_setup, .start = rte_eth_dev_start, .stop = rte_eth_dev_stop,
	.close = rte_eth_dev_close, .set_mtu = rte_eth_dev_set_mtu, .promiscuous = op_promiscuous,
	.reta = rte_eth_dev_rss_reta_update, .stats = rte_eth_stats_get,
	.link = rte_eth_link_get_nowait, .removed = rte_eth_dev_is_removed, .clock = rte_eth_read_clock, .rate = op_rate,
	.rx_queue = op_rx_queue, .tx_queue = op_tx_queue, .extmem = op_extmem, .dma = op_dma,
	.flow_validate = rte_flow_validate, .flow_create = op_flow_create, .flow_destroy = rte_flow_destroy, .flow_isolate = rte_flow_isolate, .flow_query = rte_flow_query,
	.rx = op_rx, .tx = op_tx, .prepare = op_prepare, .cleanup = rte_eth_tx_done_cleanup,
};

// EAL writes its log to a stream whose last bytes stay in memory, for the errors that follow from it.
static struct {
	pthread_mutex_t mu;
	char text[4096];
	int n;
} eal_log = {.mu = PTHREAD_MUTEX_INITIALIZER};

static ssize_t log_write(void *cookie, const char *p, size_t n)
{
	size_t all = n;
	(void)cookie;
	pthread_mutex_lock(&eal_log.mu);
	if (n > sizeof eal_log.text) {
		p += n - sizeof eal_log.text;
		n = sizeof eal_log.text;
	}
	if (eal_log.n + n > sizeof eal_log.text) {
		size_t drop = eal_log.n + n - sizeof eal_log.text;
		memmove(eal_log.text, eal_log.text + drop, eal_log.n - drop);
		eal_log.n -= drop;
	}
	memcpy(eal_log.text + eal_log.n, p, n);
	eal_log.n += n;
	pthread_mutex_unlock(&eal_log.mu);
	return all;
}

// ps_log moves the log since the last call to to.
int ps_log(char *to, int len)
{
	pthread_mutex_lock(&eal_log.mu);
	int n = eal_log.n < len ? eal_log.n : len;
	memcpy(to, eal_log.text + eal_log.n - n, n);
	eal_log.n = 0;
	pthread_mutex_unlock(&eal_log.mu);
	return n;
}

int ps_eal_init(int argc, char **argv, char *log, int log_len)
{
	static char **volatile kept; // EAL has parts of it, for as long as the process runs
	kept = argv;
	(void)kept;
	static FILE *stream;
	if (!stream) {
		cookie_io_functions_t io = {.write = log_write};
		if (!(stream = fopencookie(NULL, "w", io)))
			return -errno;
		setvbuf(stream, NULL, _IONBF, 0);
		rte_openlog_stream(stream);
	}
	rte_errno = 0;
	int r = rte_eal_init(argc, argv);
	if (r < 0) {
		int e = ps_reason();
		int n = ps_log(log, log_len - 1);
		log[n] = 0;
		return -e;
	}
	rte_openlog_stream(stream); // EAL has set one of its own
	return 0;
}

int ps_physical(void) { return rte_eal_iova_mode() == RTE_IOVA_PA; }
int ps_eal_cleanup(void) { return rte_eal_cleanup(); }

int ps_attach(const char *devargs, uint16_t *ports, int max)
{
	int r = ps_ops.probe(devargs);
	if (r < 0)
		return r;
	struct rte_dev_iterator it;
	uint16_t port;
	int n = 0;
	RTE_ETH_FOREACH_MATCHING_DEV(port, devargs, &it)
	{
		if (n == max) {
			rte_eth_iterator_cleanup(&it);
			break;
		}
		ports[n++] = port;
	}
	return n;
}

struct rte_device *ps_device(uint16_t port)
{
	struct rte_eth_dev_info info;
	return ps_ops.info(port, &info) < 0 ? NULL : info.device;
}

// ps_close stops and closes a port: the driver frees the mbufs that it has, and the port's number means nothing any more.
int ps_close(uint16_t port)
{
	ps_ops.stop(port);
	return ps_ops.close(port);
}

int ps_remove(struct rte_device *dev) { return ps_ops.remove(dev); }

int ps_info(uint16_t port, struct ps_info *to)
{
	struct rte_eth_dev_info i;
	struct rte_ether_addr mac = {{0}};
	int r = ps_ops.info(port, &i);
	if (r < 0)
		return r;
	memset(to, 0, sizeof *to);
	rte_eth_dev_get_name_by_port(port, to->name);
	snprintf(to->driver, sizeof to->driver, "%s", i.driver_name ? i.driver_name : "");
	if (i.device) {
		const struct rte_bus *bus = rte_bus_find_by_device(i.device);
#if RTE_VERSION >= RTE_VERSION_NUM(22, 11, 0, 0)
		snprintf(to->bus, sizeof to->bus, "%s", bus ? rte_bus_name(bus) : "");
#endif
	}
	to->numa = rte_eth_dev_socket_id(port);
	to->max_rx = i.max_rx_queues;
	to->max_tx = i.max_tx_queues;
	to->min_rx_desc = i.rx_desc_lim.nb_min;
	to->max_rx_desc = i.rx_desc_lim.nb_max;
	to->rx_align = i.rx_desc_lim.nb_align;
	to->min_tx_desc = i.tx_desc_lim.nb_min;
	to->max_tx_desc = i.tx_desc_lim.nb_max;
	to->tx_align = i.tx_desc_lim.nb_align;
	to->min_rx_buf = i.min_rx_bufsize;
	to->max_rx_pkt = i.max_rx_pktlen;
	to->min_mtu = i.min_mtu;
	to->max_mtu = i.max_mtu;
	to->hash_key = i.hash_key_size;
	to->reta = i.reta_size;
	if (i.rx_offload_capa & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT && i.rx_seg_capa.multi_pools)
		to->split = i.rx_seg_capa.max_nseg;
	to->rx_offloads = i.rx_offload_capa;
	to->tx_offloads = i.tx_offload_capa;
	to->rx_queue_offloads = i.rx_queue_offload_capa;
	to->tx_queue_offloads = i.tx_queue_offload_capa;
	to->rss_types = i.flow_type_rss_offloads;
	to->capa = i.dev_capa;
	rte_eth_macaddr_get(port, &mac);
	memcpy(to->mac, mac.addr_bytes, 6);
	rte_eth_dev_get_mtu(port, &to->mtu);
	return 0;
}

int ps_configure(uint16_t port, const struct ps_conf *c)
{
	struct rte_eth_conf conf;
	memset(&conf, 0, sizeof conf);
	conf.rxmode.offloads = c->rx_offloads;
	conf.txmode.offloads = c->tx_offloads;
	conf.rxmode.mtu = c->mtu;
	if (c->rss_types) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = c->rss_types;
		if (c->key_len) {
			conf.rx_adv_conf.rss_conf.rss_key = (uint8_t *)c->key;
			conf.rx_adv_conf.rss_conf.rss_key_len = c->key_len;
		}
	}
	return ps_ops.configure(port, c->rx, c->tx, &conf);
}

// ps_rx_setup has a queue receive into a pool. With head the first at bytes of each packet go there, and only the rest into pool.
int ps_rx_setup(uint16_t port, uint16_t queue, uint16_t depth, struct ps_pool *pool, struct ps_pool *head, uint16_t at, uint64_t offloads)
{
	struct rte_eth_dev_info i;
	int r = ps_ops.info(port, &i);
	if (r < 0)
		return r;
	struct rte_eth_rxconf conf = i.default_rxconf;
	conf.offloads = offloads;
	if (!head)
		return ps_ops.rx_setup(port, queue, depth, rte_eth_dev_socket_id(port), &conf, pool->mp);
	union rte_eth_rxseg seg[2];
	memset(seg, 0, sizeof seg);
	seg[0].split.mp = head->mp;
	seg[0].split.length = at;
	seg[1].split.mp = pool->mp;
	conf.rx_seg = seg;
	conf.rx_nseg = 2;
	conf.offloads |= RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT;
	return ps_ops.rx_setup(port, queue, depth, rte_eth_dev_socket_id(port), &conf, NULL);
}

int ps_tx_setup(uint16_t port, uint16_t queue, uint16_t depth, uint64_t offloads)
{
	struct rte_eth_dev_info i;
	int r = ps_ops.info(port, &i);
	if (r < 0)
		return r;
	struct rte_eth_txconf conf = i.default_txconf;
	conf.offloads = offloads;
	return ps_ops.tx_setup(port, queue, depth, rte_eth_dev_socket_id(port), &conf);
}

// ps_reta spreads the entries of the table of RSS over queues, evenly.
int ps_reta(uint16_t port, uint16_t size, const uint16_t *queues, int n)
{
	struct rte_eth_rss_reta_entry64 t[16];
	if (size > 16 * RTE_ETH_RETA_GROUP_SIZE || n < 1)
		return -EINVAL;
	memset(t, 0, sizeof t);
	for (int k = 0; k < size; k++) {
		t[k / RTE_ETH_RETA_GROUP_SIZE].mask |= 1ull << (k % RTE_ETH_RETA_GROUP_SIZE);
		t[k / RTE_ETH_RETA_GROUP_SIZE].reta[k % RTE_ETH_RETA_GROUP_SIZE] = queues[k % n];
	}
	return ps_ops.reta(port, t, size);
}

// ps_link is whether the link is up, and its speed.
int ps_link(uint16_t port, uint32_t *mbps)
{
	struct rte_eth_link l;
	int r = ps_ops.link(port, &l);
	if (r < 0)
		return r;
	*mbps = l.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : l.link_speed;
	return l.link_status == RTE_ETH_LINK_UP;
}

int ps_xstats(uint16_t port, uint64_t *values, int n)
{
	struct rte_eth_xstat *x = calloc(n, sizeof *x);
	if (!x)
		return -ENOMEM;
	int r = rte_eth_xstats_get(port, x, n);
	for (int i = 0; i < r && i < n; i++)
		if (x[i].id < (uint64_t)n)
			values[x[i].id] = x[i].value;
	free(x);
	return r;
}

int ps_xstat_names(uint16_t port, struct rte_eth_xstat_name *names, int n) { return rte_eth_xstats_get_names(port, names, n); }

// ps_map lets a device reach memory, or no longer. A device of no bus with an IOMMU has nothing to be told.
int ps_map(struct rte_device *dev, uintptr_t addr, size_t len, int on)
{
	int r = ps_ops.dma(dev, (void *)addr, addr, len, on);
	return r == -ENOTSUP || r == -ENOSYS || r == -ENODEV ? 0 : r;
}

int ps_extmem(uintptr_t addr, size_t len, size_t page, int on) { return ps_ops.extmem((void *)addr, len, page, on); }
int ps_start(uint16_t port) { return ps_ops.start(port); }
int ps_stop(uint16_t port) { return ps_ops.stop(port); }
int ps_promiscuous(uint16_t port, int on) { return ps_ops.promiscuous(port, on); }
int ps_set_mtu(uint16_t port, uint16_t mtu) { return ps_ops.set_mtu(port, mtu); }
int ps_stats(uint16_t port, struct rte_eth_stats *to) { return ps_ops.stats(port, to); }

int ps_removed(uint16_t port) { return ps_ops.removed(port); }
int ps_clock(uint16_t port, uint64_t *ticks) { return ps_ops.clock(port, ticks); }
int ps_rate(uint16_t port, uint16_t queue, uint32_t mbps) { return ps_ops.rate(port, queue, mbps); }
int ps_rx_queue(uint16_t port, uint16_t queue, int on) { return ps_ops.rx_queue(port, queue, on); }
int ps_tx_queue(uint16_t port, uint16_t queue, int on) { return ps_ops.tx_queue(port, queue, on); }

struct ps_times ps_times;

// ps_times_register makes room for times in all mbufs.
int ps_times_register(void)
{
	struct ps_times t;
	rte_errno = 0;
	int r = rte_mbuf_dyn_rx_timestamp_register(&t.offset, &t.rx);
	if (r == 0)
		r = rte_mbuf_dyn_tx_timestamp_register(&t.offset, &t.tx); // the same field
	if (r < 0)
		return -ps_reason();
	ps_times = t;
	return 0;
}

struct ps_ops ps_real;
static int refused;
static int refuse(void) { return -refused; }

int ps_refuse(int n, int err)
{
	enum { all = offsetof(struct ps_ops, rx) / sizeof(void (*)(void)) };
	if (!ps_real.probe)
		ps_real = ps_ops;
	ps_ops = ps_real;
	refused = err;
	if (n >= 0 && n < all)
		((int (**)(void))&ps_ops)[n] = refuse;
	return all;
}
