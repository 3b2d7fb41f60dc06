// The C half of package cdpdk: what one call from Go does with a whole burst, and a table of the functions of DPDK that it calls.
#ifndef PENSTOCK_SHIM_H
#define PENSTOCK_SHIM_H

#include <stdint.h>
#include <errno.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#define PS_BURST 256  // packets of one call, at most
#define PS_SEGS 64    // segments of one packet, at most
#define PS_DESCS 1024 // segments of one call, at most

// ps_reason is why a function of DPDK failed that returned -1 or no pointer. It leaves that in rte_errno, which each thread has for itself;
// set it to 0 before such a call, because not each of them does: VFIO's mapping of memory is one that does not.
static inline int ps_reason(void) { return rte_errno > 0 ? rte_errno : EINVAL; }

// ps_ops is every function that can fail or that a driver implements. A test replaces entries.
struct ps_ops {
	int (*probe)(const char *devargs);
	int (*remove)(struct rte_device *dev);
	int (*info)(uint16_t port, struct rte_eth_dev_info *info);
	int (*configure)(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *conf);
	int (*rx_setup)(uint16_t port, uint16_t queue, uint16_t depth, unsigned socket, const struct rte_eth_rxconf *conf, struct rte_mempool *pool);
	int (*tx_setup)(uint16_t port, uint16_t queue, uint16_t depth, unsigned socket, const struct rte_eth_txconf *conf);
	int (*start)(uint16_t port);
	int (*stop)(uint16_t port);
	int (*close)(uint16_t port);
	int (*set_mtu)(uint16_t port, uint16_t mtu);
	int (*promiscuous)(uint16_t port, int on);
	int (*reta)(uint16_t port, struct rte_eth_rss_reta_entry64 *conf, uint16_t size);
	int (*stats)(uint16_t port, struct rte_eth_stats *stats);
	int (*link)(uint16_t port, struct rte_eth_link *link);
	int (*removed)(uint16_t port);
	int (*clock)(uint16_t port, uint64_t *ticks);
	int (*rate)(uint16_t port, uint16_t queue, uint32_t mbps);
	int (*rx_queue)(uint16_t port, uint16_t queue, int on);
	int (*tx_queue)(uint16_t port, uint16_t queue, int on);
	int (*extmem)(void *addr, size_t len, size_t page, int on);
	int (*dma)(struct rte_device *dev, void *addr, uint64_t iova, size_t len, int on);
	int (*flow_validate)(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item *items, const struct rte_flow_action *actions, struct rte_flow_error *err);
	int (*flow_create)(uint16_t port, const struct rte_flow_attr *attr, const struct rte_flow_item *items, const struct rte_flow_action *actions, struct rte_flow **made, struct rte_flow_error *err);
	int (*flow_destroy)(uint16_t port, struct rte_flow *f, struct rte_flow_error *err);
	int (*flow_isolate)(uint16_t port, int on, struct rte_flow_error *err);
	int (*flow_query)(uint16_t port, struct rte_flow *f, const struct rte_flow_action *actions, void *to, struct rte_flow_error *err);
	uint16_t (*rx)(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n);
	uint16_t (*tx)(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n);
	uint16_t (*prepare)(uint16_t port, uint16_t queue, struct rte_mbuf **m, uint16_t n);
	int (*cleanup)(uint16_t port, uint16_t queue, uint32_t n);
};

extern struct ps_ops ps_ops;
extern struct ps_ops ps_real; // as they are without tests, once ps_refuse was called

// ps_refuse has entry n of the table, those that return an int from the first on, answer -err; -1 has all answer as they do. It returns how many there are.
int ps_refuse(int n, int err);

// ps_pool is a mempool whose mbufs have numbers. The number of an mbuf is in its private data.
struct ps_pool {
	struct rte_mempool *mp;
	struct rte_mbuf **mbuf; // by number
	uint32_t n;
	char *memory; // of an own pool: all of its mbufs
	uint64_t length;
};

// ps_priv is the private data of each of our mbufs.
struct ps_priv {
	struct rte_mbuf_ext_shared_info shared;
	uint32_t number;
};

struct ps_info {
	char name[64], driver[64], bus[64];
	int numa;
	uint32_t max_rx, max_tx, min_rx_desc, max_rx_desc, rx_align, min_tx_desc, max_tx_desc, tx_align;
	uint32_t min_rx_buf, max_rx_pkt, min_mtu, max_mtu, hash_key, reta, split; // split: segments that the device receives into pools of their own, 0 for none
	uint64_t rx_offloads, tx_offloads, rx_queue_offloads, tx_queue_offloads, rss_types, capa;
	uint8_t mac[6];
	uint16_t mtu;
};

struct ps_conf {
	uint32_t rx, tx, mtu, key_len;
	uint64_t rx_offloads, tx_offloads, rss_types;
	uint8_t key[64];
};

// ps_desc is one received segment. The first of a packet says of how many it is.
struct ps_desc {
	uint64_t addr, mbuf, flags, time; // time in ticks of the device's clock, 0 for none
	uint32_t slot, pkt_len, hash, mark;
	uint16_t off, len;
	uint8_t foreign, segs;
};

struct ps_rx {
	uint16_t port, queue;
	struct ps_pool *pool;
	uint32_t *give; // numbers of mbufs for the driver
	struct ps_desc *desc;
	struct rte_mbuf **m;
	uint64_t too_long; // packets of more than PS_SEGS segments
};

// ps_seg is one segment to send. The first one of a packet has what is the packet's.
struct ps_seg {
	uint64_t addr, flags, time; // time in ticks of the device's clock, 0 for none
	uint32_t index, pkt_len;
	uint16_t len, cut; // cut: bytes of payload for each packet that the device makes of it
	uint8_t l2, l3, l4, segs;
};

// ps_one is a packet to send that is of one segment and asks for nothing.
struct ps_one {
	uint64_t addr;
	uint32_t index, len;
};

struct ps_tx {
	uint16_t port, queue;
	int physical; // devices go by physical addresses
	struct ps_pool *pool;
	struct ps_seg *seg;
	struct ps_one *one;
	struct rte_mbuf **m, **packet;
	uint32_t *done;
	uint32_t out; // headers that are not in the mempool
	uint32_t back; // those that came back during the last burst, in done
	uint64_t refused; // packets that the driver cannot send
};

// ps_item is an item of a rule. Its header counts as rteflow.Header does.
struct ps_item {
	uint8_t header, has_spec, has_last, no_tags;
	int32_t offset;
	uint8_t spec[40], last[40], mask[40];
};

// ps_action is what a rule does. Its kind counts as rteflow.ActionKind does.
struct ps_action {
	uint32_t kind, value, n;
	uint16_t queues[128];
};

int ps_eal_init(int argc, char **argv, char *log, int log_len);
int ps_eal_cleanup(void);
int ps_physical(void);
int ps_log(char *to, int len);

int ps_attach(const char *devargs, uint16_t *ports, int max);
struct rte_device *ps_device(uint16_t port);
int ps_close(uint16_t port);
int ps_remove(struct rte_device *dev);
int ps_info(uint16_t port, struct ps_info *to);
int ps_configure(uint16_t port, const struct ps_conf *c);
int ps_rx_setup(uint16_t port, uint16_t queue, uint16_t depth, struct ps_pool *pool, struct ps_pool *head, uint16_t at, uint64_t offloads);
int ps_tx_setup(uint16_t port, uint16_t queue, uint16_t depth, uint64_t offloads);
int ps_reta(uint16_t port, uint16_t size, const uint16_t *queues, int n);
int ps_link(uint16_t port, uint32_t *mbps);
int ps_xstats(uint16_t port, uint64_t *values, int n);
int ps_xstat_names(uint16_t port, struct rte_eth_xstat_name *names, int n);
int ps_map(struct rte_device *dev, uintptr_t addr, size_t len, int on);
int ps_extmem(uintptr_t addr, size_t len, size_t page, int on);
int ps_start(uint16_t port);
int ps_stop(uint16_t port);
int ps_promiscuous(uint16_t port, int on);
int ps_set_mtu(uint16_t port, uint16_t mtu);
int ps_stats(uint16_t port, struct rte_eth_stats *to);
int ps_removed(uint16_t port);
int ps_clock(uint16_t port, uint64_t *ticks);
int ps_rate(uint16_t port, uint16_t queue, uint32_t mbps);
int ps_rx_queue(uint16_t port, uint16_t queue, int on);
int ps_tx_queue(uint16_t port, uint16_t queue, int on);

// ps_times is where mbufs have times, and the flags that say so (rte_mbuf_dyn). Both flags are 0 before ps_times_register.
struct ps_times {
	int offset;
	uint64_t rx, tx;
};
extern struct ps_times ps_times;
int ps_times_register(void);

struct ps_pool *ps_slot_pool_at(const char *name, uintptr_t base, uint32_t n, uint64_t stride, uint32_t room, int socket, int *err);
struct ps_pool *ps_own_pool(const char *name, uint32_t n, uint32_t room, int socket, int *err);
struct ps_pool *ps_header_pool(const char *name, uint32_t n, int others, int socket, int *err);
uint32_t ps_pool_free_count(struct ps_pool *p);
void ps_pool_close(struct ps_pool *p);
void *ps_alloc(uint64_t n);
void ps_dealloc(void *p);

int ps_flow(uint16_t port, uint32_t priority, const struct ps_item *items, int n, const struct ps_action *actions, int m, uint64_t rss_types,
	    const uint8_t *key, uint32_t key_len, struct rte_flow **made, char *why, int why_len);
void ps_flow_words(const struct rte_flow_error *err, char *why, int why_len);
int ps_flow_destroy(uint16_t port, struct rte_flow *f);
int ps_flow_isolate(uint16_t port, int on, char *why, int why_len);
int ps_flow_count(uint16_t port, struct rte_flow *f, uint64_t *packets, uint64_t *bytes);

struct ps_rx *ps_rx_new(uint16_t port, uint16_t queue, struct ps_pool *pool);
uint64_t ps_rx_burst(struct ps_rx *r, uint32_t give, uint32_t most);
void ps_rx_give(struct ps_rx *r, uint32_t give);
void ps_free_foreign(uint64_t *m, uint32_t n);
uint32_t ps_rx_take_back(struct ps_rx *r);
void ps_rx_free(struct ps_rx *r);

struct ps_tx *ps_tx_new(uint16_t port, uint16_t queue, uint32_t depth, int others, const char *name, int *err);
uint32_t ps_tx_burst(struct ps_tx *t, uint32_t segs);
uint32_t ps_tx_run(struct ps_tx *t, uint32_t packets);
uint32_t ps_tx_reap(struct ps_tx *t, int running);
void ps_tx_free(struct ps_tx *t);

#endif
