/* Steering rules of frames, and their checksums. */
#include "verbs_fake.h"

#include <arpa/inet.h>
#include <string.h>

/* check_specs is what a device checks of a rule: types, sizes, order of layers, and no value outside its mask. */
static int check_specs(const struct ibv_flow_attr *a, uint32_t *len)
{
	const char *p = (const char *)(a + 1);
	uint32_t off = 0;
	int layer = 0;
	for (int i = 0; i < a->num_of_specs; i++) {
		struct ibv_flow_spec s;
		size_t val, want;
		int at;
		memset(&s, 0, sizeof(s));
		memcpy(&s, p + off, sizeof(s.hdr));
		switch (s.hdr.type) {
		case IBV_FLOW_SPEC_ETH: want = sizeof(s.eth), val = sizeof(s.eth.val), at = 1; break;
		case IBV_FLOW_SPEC_IPV4: want = sizeof(s.ipv4), val = sizeof(s.ipv4.val), at = 2; break;
		case IBV_FLOW_SPEC_IPV4_EXT: want = sizeof(s.ipv4_ext), val = sizeof(s.ipv4_ext.val), at = 2; break;
		case IBV_FLOW_SPEC_IPV6: want = sizeof(s.ipv6), val = sizeof(s.ipv6.val), at = 2; break;
		case IBV_FLOW_SPEC_TCP:
		case IBV_FLOW_SPEC_UDP: want = sizeof(s.tcp_udp), val = sizeof(s.tcp_udp.val), at = 3; break;
		default: return EOPNOTSUPP;
		}
		if (s.hdr.size != want || at <= layer || off + want > 256)
			return EINVAL;
		layer = at;
		memcpy(&s, p + off, want);
		const uint8_t *v = (const uint8_t *)&s;
		v += at == 1 ? offsetof(struct ibv_flow_spec_eth, val) : at == 3 ? offsetof(struct ibv_flow_spec_tcp_udp, val) :
		     offsetof(struct ibv_flow_spec_ipv4, val); /* the same in all of IP */
		for (size_t k = 0; k < val; k++)
			if (v[k] & ~v[val + k])
				return EINVAL;
		off += (uint32_t)want;
	}
	*len = off;
	return sizeof(*a) + off == a->size ? 0 : EINVAL;
}

struct ibv_flow *fake_create_flow(struct ibv_qp *ibv, struct ibv_flow_attr *a)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;
	struct fake_flow *f = NULL;
	uint32_t len = 0;
	lock();
	int err = fake_call(CALL_ibv_create_flow);
	if (!err && !ALIVE(qp, K_QP, "ibv_create_flow"))
		err = EINVAL;
	if (!err && (qp->type != IBV_QPT_RAW_PACKET || a->comp_mask || a->flags || a->port != 1))
		err = EINVAL;
	if (!err && a->type != IBV_FLOW_ATTR_NORMAL && a->type != IBV_FLOW_ATTR_ALL_DEFAULT)
		err = EOPNOTSUPP;
	if (!err && a->type == IBV_FLOW_ATTR_ALL_DEFAULT && a->num_of_specs)
		err = EINVAL;
	if (!err)
		err = check_specs(a, &len);
	if (!err && !(f = NEW(struct fake_flow, K_FLOW, qp->o.ctx)))
		err = ENOMEM;
	if (f) {
		f->ibv.context = ibv->context;
		f->ibv.handle = (uint32_t)f->o.serial;
		f->qp = qp;
		f->attr = *a;
		f->specs_len = len;
		memcpy(f->specs, a + 1, len);
		qp->flows++;
	}
	unlock();
	if (err)
		errno = err;
	return f ? &f->ibv : NULL;
}

int fake_destroy_flow(struct ibv_flow *ibv)
{
	struct fake_flow *f = (struct fake_flow *)ibv;
	lock();
	int err = fake_call(CALL_ibv_destroy_flow);
	if (!err && !ALIVE(f, K_FLOW, "ibv_destroy_flow"))
		err = EINVAL;
	if (!err) {
		f->qp->flows--;
		fake_bury(&f->o);
	}
	unlock();
	return err;
}

/* ---- matching */

/* What of a frame rules look at. */
struct fields {
	const uint8_t *eth, *ip, *l4;
	uint16_t type;       /* behind a tag */
	uint16_t tag;
	int version;
	uint8_t proto;
};

static uint16_t be16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }

static struct fields parse(const uint8_t *f, uint32_t len)
{
	struct fields x = {.eth = f};
	uint32_t at = 14;
	x.type = be16(f + 12);
	if (x.type == 0x8100 && len >= 18) {
		x.tag = be16(f + 14);
		x.type = be16(f + 16);
		at = 18;
	}
	if (x.type == 0x0800 && len >= at + 20 && f[at] >> 4 == 4) {
		uint32_t hl = (f[at] & 15u) * 4;
		x.version = 4;
		x.ip = f + at;
		x.proto = f[at + 9];
		if (hl >= 20 && len >= at + hl + 4 && !(be16(f + at + 6) & 0x1fff))
			x.l4 = f + at + hl;
	} else if (x.type == 0x86dd && len >= at + 40 && f[at] >> 4 == 6) {
		x.version = 6;
		x.ip = f + at;
		x.proto = f[at + 6];
		if (len >= at + 44)
			x.l4 = f + at + 40;
	}
	return x;
}

static bool under(const void *have, const void *val, const void *mask, size_t n)
{
	const uint8_t *h = have, *v = val, *m = mask;
	for (size_t i = 0; i < n; i++)
		if ((h[i] & m[i]) != v[i])
			return false;
	return true;
}

static bool matches(const struct fake_flow *f, const struct fields *x)
{
	uint32_t off = 0;
	while (off < f->specs_len) {
		struct ibv_flow_spec s;
		struct ibv_flow_spec_eth eth;
		memcpy(&s, f->specs + off, f->specs_len - off < sizeof(s) ? f->specs_len - off : sizeof(s));
		off += s.hdr.size;
		switch (s.hdr.type) {
		case IBV_FLOW_SPEC_ETH: {
			memcpy(eth.val.dst_mac, x->eth, 12);
			eth.val.ether_type = htons(x->type);
			eth.val.vlan_tag = htons(x->tag);
			if (!under(eth.val.dst_mac, &s.eth.val, &s.eth.mask, sizeof(s.eth.val)))
				return false;
			break;
		}
		case IBV_FLOW_SPEC_IPV4:
			if (x->version != 4 || !under(x->ip + 12, &s.ipv4.val, &s.ipv4.mask, 8))
				return false;
			break;
		case IBV_FLOW_SPEC_IPV4_EXT:
			if (x->version != 4 || !under(x->ip + 12, &s.ipv4_ext.val, &s.ipv4_ext.mask, 8) ||
			    !under(&x->proto, &s.ipv4_ext.val.proto, &s.ipv4_ext.mask.proto, 1))
				return false;
			break;
		case IBV_FLOW_SPEC_IPV6:
			if (x->version != 6 || !under(x->ip + 8, &s.ipv6.val, &s.ipv6.mask, 32) ||
			    !under(&x->proto, &s.ipv6.val.next_hdr, &s.ipv6.mask.next_hdr, 1))
				return false;
			break;
		default: {
			uint8_t ports[4];
			if (!x->l4 || x->proto != (s.hdr.type == IBV_FLOW_SPEC_TCP ? 6 : 17))
				return false;
			memcpy(ports, x->l4 + 2, 2); /* the destination comes first in a rule */
			memcpy(ports + 2, x->l4, 2);
			if (!under(ports, &s.tcp_udp.val, &s.tcp_udp.mask, 4))
				return false;
		}
		}
	}
	return true;
}

static bool same(const struct fake_flow *a, const struct fake_flow *b)
{
	return a->attr.type == b->attr.type && a->attr.priority == b->attr.priority && a->specs_len == b->specs_len &&
	       !memcmp(a->specs, b->specs, a->specs_len);
}

/* fake_raw_receivers finds the queue pairs that get a frame: those of the best rule, and of the rules that are equal to it, each of which
 * gets a copy, as mlx5 does. A rule that matches and whose queue pair is not ready swallows the frame. */
int fake_raw_receivers(struct fake_device *dev, const uint8_t *frame, uint32_t len, struct fake_qp **out, int max)
{
	struct fields x = parse(frame, len);
	struct fake_flow *best = NULL;
	int n = 0;
	for (struct obj *o = fake_first(K_FLOW); o; o = o->next) {
		struct fake_flow *f = container(o, struct fake_flow, o);
		if (f->qp->dev != dev || !matches(f, &x))
			continue;
		if (!best || f->attr.type < best->attr.type || (f->attr.type == best->attr.type && f->attr.priority < best->attr.priority))
			best = f;
	}
	for (struct obj *o = best ? fake_first(K_FLOW) : NULL; o && n < max; o = o->next) {
		struct fake_flow *f = container(o, struct fake_flow, o);
		if (f->qp->dev != dev || !same(f, best))
			continue;
		if (f->qp->state == IBV_QPS_RTR || f->qp->state == IBV_QPS_RTS)
			out[n++] = f->qp;
		else
			fake_count(CALL_drops, 1);
	}
	return n;
}

/* ---- checksums */

static uint32_t add(uint32_t sum, const uint8_t *p, uint32_t n)
{
	for (uint32_t i = 0; i + 1 < n; i += 2)
		sum += be16(p + i);
	if (n & 1)
		sum += (uint32_t)p[n - 1] << 8;
	return sum;
}

static uint16_t fold(uint32_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static void put(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

/* fake_raw_sums writes the checksums of IPv4, TCP and UDP, or says whether all that are there are right. A frame without any has none
 * that is. */
bool fake_raw_sums(uint8_t *f, uint32_t len, bool write)
{
	struct fields x = parse(f, len);
	if (!x.version)
		return false;
	uint8_t *ip = f + (x.ip - f), *l4 = x.l4 ? f + (x.l4 - f) : NULL;
	uint32_t total = x.version == 4 ? be16(ip + 2) : 40u + be16(ip + 4), hl = x.version == 4 ? (ip[0] & 15u) * 4 : 40;
	if (total > len - (uint32_t)(ip - f) || total < hl || hl < 20)
		return false;
	if (x.version == 4) {
		if (write) {
			put(ip + 10, 0);
			put(ip + 10, fold(add(0, ip, hl)));
		} else if (fold(add(0, ip, hl)))
			return false;
	}
	uint32_t at = x.proto == 17 ? 6 : x.proto == 6 ? 16 : 0, n = total - hl;
	if (!l4 || !at || n < at + 2)
		return write || x.version == 4;
	uint32_t sum = x.version == 4 ? add(0, ip + 12, 8) : add(0, ip + 8, 32);
	sum += x.proto + n;
	if (write) {
		put(l4 + at, 0);
		uint16_t c = fold(add(sum, l4, n));
		put(l4 + at, c || x.proto == 6 ? c : 0xffff);
		return true;
	}
	if (x.proto == 17 && !be16(l4 + 6))
		return true; /* the sender made none */
	return fold(add(sum, l4, n)) == 0;
}
