//go:build dpdk

#include "shim.h"

#include <errno.h>
#include <string.h>
#include <rte_flow.h>

enum { MAX_STEPS = 12 };

// part is a header of an item: each begins with the bytes as they are on the wire.
union part {
	uint8_t bytes[64];
	struct rte_flow_item_eth eth;
	struct rte_flow_item_vlan vlan;
	struct rte_flow_item_raw raw;
};

static const enum rte_flow_item_type item_types[] = {
	RTE_FLOW_ITEM_TYPE_ETH, RTE_FLOW_ITEM_TYPE_VLAN, RTE_FLOW_ITEM_TYPE_IPV4, RTE_FLOW_ITEM_TYPE_IPV6, RTE_FLOW_ITEM_TYPE_UDP, RTE_FLOW_ITEM_TYPE_TCP,
	RTE_FLOW_ITEM_TYPE_RAW, RTE_FLOW_ITEM_TYPE_VXLAN, RTE_FLOW_ITEM_TYPE_NVGRE,
};

static const enum rte_flow_action_type action_types[] = {
	RTE_FLOW_ACTION_TYPE_MARK, RTE_FLOW_ACTION_TYPE_COUNT, RTE_FLOW_ACTION_TYPE_QUEUE, RTE_FLOW_ACTION_TYPE_RSS, RTE_FLOW_ACTION_TYPE_DROP,
	RTE_FLOW_ACTION_TYPE_OF_POP_VLAN, RTE_FLOW_ACTION_TYPE_OF_PUSH_VLAN, RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_VID, RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_PCP,
	RTE_FLOW_ACTION_TYPE_VXLAN_DECAP, RTE_FLOW_ACTION_TYPE_NVGRE_DECAP,
};

// raw makes an item of bytes of the payload.
static void raw(union part *p, const uint8_t *pattern, int32_t offset, uint16_t length)
{
	p->raw = (struct rte_flow_item_raw){.relative = 1, .offset = offset, .length = length, .pattern = pattern};
}

// ps_flow validates a rule, or creates it where made is not NULL. The result is 0, or a negative errno with the driver's words in why.
int ps_flow(uint16_t port, uint32_t priority, const struct ps_item *items, int n, const struct ps_action *actions, int m, uint64_t rss_types,
	    const uint8_t *key, uint32_t key_len, struct rte_flow **made, char *why, int why_len)
{
	struct rte_flow_item item[MAX_STEPS];
	struct rte_flow_action action[MAX_STEPS];
	union part spec[MAX_STEPS], last[MAX_STEPS], mask[MAX_STEPS];
	union {
		struct rte_flow_action_mark mark;
		struct rte_flow_action_count count;
		struct rte_flow_action_queue queue;
		struct rte_flow_action_rss rss;
		struct rte_flow_action_of_push_vlan push;
		struct rte_flow_action_of_set_vlan_vid vid;
		struct rte_flow_action_of_set_vlan_pcp pcp;
	} conf[MAX_STEPS];

	if (n >= MAX_STEPS || m >= MAX_STEPS)
		return -E2BIG;
	memset(item, 0, sizeof item);
	memset(action, 0, sizeof action);
	memset(spec, 0, sizeof spec);
	memset(last, 0, sizeof last);
	memset(mask, 0, sizeof mask);
	memset(conf, 0, sizeof conf);
	for (int i = 0; i < n; i++) {
		const struct ps_item *from = &items[i];
		item[i].type = item_types[from->header];
		if (item[i].type == RTE_FLOW_ITEM_TYPE_RAW) {
			raw(&spec[i], from->spec, from->offset, 4);
			raw(&mask[i], from->mask, -1, UINT16_MAX);
		} else {
			memcpy(spec[i].bytes, from->spec, sizeof from->spec);
			memcpy(last[i].bytes, from->last, sizeof from->last);
			memcpy(mask[i].bytes, from->mask, sizeof from->mask);
		}
		if (from->no_tags && item[i].type == RTE_FLOW_ITEM_TYPE_ETH)
			mask[i].eth.has_vlan = 1;
		if (from->no_tags && item[i].type == RTE_FLOW_ITEM_TYPE_VLAN)
			mask[i].vlan.has_more_vlan = 1;
		if (from->has_spec || from->no_tags) {
			item[i].spec = &spec[i];
			item[i].mask = &mask[i];
		}
		if (from->has_last)
			item[i].last = &last[i];
	}
	item[n].type = RTE_FLOW_ITEM_TYPE_END;
	for (int i = 0; i < m; i++) {
		const struct ps_action *from = &actions[i];
		action[i].type = action_types[from->kind];
		action[i].conf = &conf[i];
		switch (action[i].type) {
		case RTE_FLOW_ACTION_TYPE_MARK:
			conf[i].mark.id = from->value;
			break;
		case RTE_FLOW_ACTION_TYPE_COUNT:
			break;
		case RTE_FLOW_ACTION_TYPE_QUEUE:
			conf[i].queue.index = from->queues[0];
			break;
		case RTE_FLOW_ACTION_TYPE_RSS:
			conf[i].rss.types = rss_types;
			conf[i].rss.key = key_len ? key : NULL;
			conf[i].rss.key_len = key_len;
			conf[i].rss.queue_num = from->n;
			conf[i].rss.queue = from->queues;
			break;
		case RTE_FLOW_ACTION_TYPE_OF_PUSH_VLAN:
			conf[i].push.ethertype = rte_cpu_to_be_16(from->value);
			break;
		case RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_VID:
			conf[i].vid.vlan_vid = rte_cpu_to_be_16(from->value);
			break;
		case RTE_FLOW_ACTION_TYPE_OF_SET_VLAN_PCP:
			conf[i].pcp.vlan_pcp = from->value;
			break;
		default:
			action[i].conf = NULL;
		}
	}
	action[m].type = RTE_FLOW_ACTION_TYPE_END;

	struct rte_flow_attr attr = {.priority = priority, .ingress = 1};
	struct rte_flow_error err;
	memset(&err, 0, sizeof err);
	int r = made ? ps_ops.flow_create(port, &attr, item, action, made, &err) : ps_ops.flow_validate(port, &attr, item, action, &err);
	ps_flow_words(&err, why, why_len);
	return r;
}

// ps_flow_words copies what the driver said.
void ps_flow_words(const struct rte_flow_error *err, char *why, int why_len)
{
	snprintf(why, why_len, "%s", err->message ? err->message : "");
}

int ps_flow_destroy(uint16_t port, struct rte_flow *f)
{
	struct rte_flow_error err;
	return ps_ops.flow_destroy(port, f, &err);
}

int ps_flow_isolate(uint16_t port, int on, char *why, int why_len)
{
	struct rte_flow_error err;
	memset(&err, 0, sizeof err);
	int r = ps_ops.flow_isolate(port, on, &err);
	ps_flow_words(&err, why, why_len);
	return r;
}

// ps_flow_count asks how many packets and bytes a rule with a count has taken.
int ps_flow_count(uint16_t port, struct rte_flow *f, uint64_t *packets, uint64_t *bytes)
{
	struct rte_flow_error err;
	struct rte_flow_action_count count = {0};
	const struct rte_flow_action action[] = {{RTE_FLOW_ACTION_TYPE_COUNT, &count}, {RTE_FLOW_ACTION_TYPE_END, NULL}};
	struct rte_flow_query_count q;
	memset(&q, 0, sizeof q);
	int r = ps_ops.flow_query(port, f, action, &q, &err);
	*packets = q.hits_set ? q.hits : 0;
	*bytes = q.bytes_set ? q.bytes : 0;
	return r;
}
