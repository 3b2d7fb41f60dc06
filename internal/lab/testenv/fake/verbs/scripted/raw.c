/* Frames and rules, by the calls of the installed header. */
#include "scripted.h"

#include <arpa/inet.h>
#include <stdlib.h>

/* A frame of UDP to port 7, and a rule for such. */
static const uint8_t udp7[60] = {2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
				 0, 9, 0, 7, 0, 26, 0, 0};

struct rule {
	struct ibv_flow_attr attr;
	struct ibv_flow_spec_eth eth;
	struct ibv_flow_spec_ipv4 ip;
	struct ibv_flow_spec_tcp_udp udp;
};

static struct rule rule7(void)
{
	struct rule r = {.attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(r), .num_of_specs = 3, .port = 1}};
	r.eth.type = IBV_FLOW_SPEC_ETH;
	r.eth.size = sizeof(r.eth);
	r.eth.val.ether_type = htons(0x0800);
	r.eth.mask.ether_type = 0xffff;
	r.ip.type = IBV_FLOW_SPEC_IPV4;
	r.ip.size = sizeof(r.ip);
	r.ip.val.dst_ip = htonl(10u << 24 | 2);
	r.ip.mask.dst_ip = 0xffffffff;
	r.udp.type = IBV_FLOW_SPEC_UDP;
	r.udp.size = sizeof(r.udp);
	r.udp.val.dst_port = htons(7);
	r.udp.mask.dst_port = 0xffff;
	return r;
}

static void frame(void)
{
	struct ibv_sge s = sge(&L, 0, sizeof(udp7));
	struct ibv_send_wr wr = {.wr_id = 5, .sg_list = &s, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	memcpy(L.buf, udp7, sizeof(udp7));
	ZERO(send_wr(L.qp, &wr));
	want(L.cq, 5, IBV_WC_SUCCESS);
}

static struct ibv_qp *raw(struct side *s)
{
	struct ibv_qp_init_attr a = {.send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RAW_PACKET,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp *qp = PTR(ibv_create_qp(s->pd, &a));
	ZERO(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PORT));
	to.qp_state = IBV_QPS_RTR;
	ZERO(ibv_modify_qp(qp, &to, IBV_QP_STATE));
	to.qp_state = IBV_QPS_RTS;
	ZERO(ibv_modify_qp(qp, &to, IBV_QP_STATE));
	return qp;
}

static void frames(void)
{
	int n;
	struct ibv_device **list = PTR(ibv_get_device_list(&n));
	struct ibv_context *near = ctx, *far = PTR(ibv_open_device(list[1]));
	ibv_free_device_list(list);
	struct rule r = rule7(), wrong = rule7();
	side_open(&L, ALL);
	ctx = far;
	side_open(&R, ALL);
	ctx = near;
	script("raw on");
	L.qp = raw(&L);
	R.qp = raw(&R);

	frame(); /* there is no rule */
	counted("raw_kernel", 1);
	wrong.udp.mask.dst_port = 0;
	MUST(!ibv_create_flow(R.qp, &wrong.attr) && errno == EINVAL, "a value outside of its mask was taken");
	wrong = rule7();
	wrong.attr.size--;
	MUST(!ibv_create_flow(R.qp, &wrong.attr) && errno == EINVAL, "a wrong size was taken");
	struct ibv_flow *f = PTR(ibv_create_flow(R.qp, &r.attr));
	frame(); /* there is no receive */
	counted("raw_dry_1", 1);
	ZERO(recv_at(&R, 9, 64, 100));
	frame();
	struct ibv_wc wc = wait_wc(R.cq);
	MUST(wc.wr_id == 9 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == sizeof(udp7), "the receive: %s, %u bytes",
	     st(wc.status), wc.byte_len);
	MUST(!memcmp(R.buf + 64, udp7, sizeof(udp7)), "the frame is another");
	MUST(!(wc.wc_flags & IBV_WC_IP_CSUM_OK), "a wrong checksum was found good");
	MUST(ibv_destroy_qp(R.qp) == EBUSY, "a queue pair with a rule was destroyed");
	ZERO(ibv_destroy_flow(f));
	frame();
	counted("raw_kernel", 2);
	ZERO(ibv_destroy_qp(L.qp));
	ZERO(ibv_destroy_qp(R.qp));
	L.qp = R.qp = NULL;
	side_close(&L);
	ctx = far;
	side_close(&R);
	ctx = near;
	ZERO(ibv_close_device(far));
	reports("has 1 flows");
}

const struct check checks_raw[] = {{"raw-frames", frames}, {NULL, NULL}};
