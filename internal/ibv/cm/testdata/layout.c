// Prints where librdmacm's header puts what package cm reads and writes.
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>

#define AT(name, type, member) printf("%s %zu\n", name, offsetof(type, member))

int main(void) {
	AT("id.verbs", struct rdma_cm_id, verbs);
	AT("id.channel", struct rdma_cm_id, channel);
	AT("id.context", struct rdma_cm_id, context);
	AT("id.qp", struct rdma_cm_id, qp);
	AT("id.source", struct rdma_cm_id, route.addr.src_addr);
	AT("id.dest", struct rdma_cm_id, route.addr.dst_addr);
	AT("id.ib", struct rdma_cm_id, route.addr.addr.ibaddr);
	AT("id.paths", struct rdma_cm_id, route.path_rec);
	AT("id.numPaths", struct rdma_cm_id, route.num_paths);
	AT("id.ps", struct rdma_cm_id, ps);
	AT("id.port", struct rdma_cm_id, port_num);
	AT("params.private", struct rdma_conn_param, private_data);
	AT("params.privateLen", struct rdma_conn_param, private_data_len);
	AT("params.responder", struct rdma_conn_param, responder_resources);
	AT("params.initiator", struct rdma_conn_param, initiator_depth);
	AT("params.flow", struct rdma_conn_param, flow_control);
	AT("params.retry", struct rdma_conn_param, retry_count);
	AT("params.rnrRetry", struct rdma_conn_param, rnr_retry_count);
	AT("params.srq", struct rdma_conn_param, srq);
	AT("params.qpn", struct rdma_conn_param, qp_num);
	printf("params %zu\n", sizeof(struct rdma_conn_param));
	AT("event.id", struct rdma_cm_event, id);
	AT("event.listen", struct rdma_cm_event, listen_id);
	AT("event.typ", struct rdma_cm_event, event);
	AT("event.status", struct rdma_cm_event, status);
	AT("event.params", struct rdma_cm_event, param.conn);
	printf("event %zu\n", sizeof(struct rdma_cm_event));
	AT("ud.private", struct rdma_ud_param, private_data);
	AT("ud.privateLen", struct rdma_ud_param, private_data_len);
	AT("ud.way", struct rdma_ud_param, ah_attr);
	AT("ud.qpn", struct rdma_ud_param, qp_num);
	AT("ud.qkey", struct rdma_ud_param, qkey);
	printf("ud %zu\n", sizeof(struct rdma_ud_param));
	printf("ahAttr %zu\n", sizeof(struct ibv_ah_attr));
	AT("info.flags", struct rdma_addrinfo, ai_flags);
	AT("info.family", struct rdma_addrinfo, ai_family);
	AT("info.qpType", struct rdma_addrinfo, ai_qp_type);
	AT("info.space", struct rdma_addrinfo, ai_port_space);
	AT("info.sourceLen", struct rdma_addrinfo, ai_src_len);
	AT("info.source", struct rdma_addrinfo, ai_src_addr);
	AT("info.next", struct rdma_addrinfo, ai_next);
	printf("info %zu\n", sizeof(struct rdma_addrinfo));
	AT("channel.fd", struct rdma_event_channel, fd);
	AT("device.name", struct ibv_device, name);
	AT("context.device", struct ibv_context, device);
	AT("qp.state", struct ibv_qp_attr, qp_state);
	AT("qp.maxRdAtomic", struct ibv_qp_attr, max_rd_atomic);
	AT("qp.maxDestAtomic", struct ibv_qp_attr, max_dest_rd_atomic);
	AT("qp.minRNR", struct ibv_qp_attr, min_rnr_timer);
	AT("qp.rnrRetry", struct ibv_qp_attr, rnr_retry);
	printf("qpAttr %zu\n", sizeof(struct ibv_qp_attr));
	printf("storage %zu\n", sizeof(struct sockaddr_storage));
	printf("TCP %d\n", RDMA_PS_TCP);
	printf("UDP %d\n", RDMA_PS_UDP);
	printf("IB %d\n", RDMA_PS_IB);
	printf("type.RC %d\n", IBV_QPT_RC);
	printf("type.UC %d\n", IBV_QPT_UC);
	printf("type.UD %d\n", IBV_QPT_UD);
	printf("passive %d\n", RAI_PASSIVE);
	printf("AddressResolved %d\n", RDMA_CM_EVENT_ADDR_RESOLVED);
	printf("AddressError %d\n", RDMA_CM_EVENT_ADDR_ERROR);
	printf("RouteResolved %d\n", RDMA_CM_EVENT_ROUTE_RESOLVED);
	printf("RouteError %d\n", RDMA_CM_EVENT_ROUTE_ERROR);
	printf("ConnectRequest %d\n", RDMA_CM_EVENT_CONNECT_REQUEST);
	printf("ConnectResponse %d\n", RDMA_CM_EVENT_CONNECT_RESPONSE);
	printf("ConnectError %d\n", RDMA_CM_EVENT_CONNECT_ERROR);
	printf("Unreachable %d\n", RDMA_CM_EVENT_UNREACHABLE);
	printf("Rejected %d\n", RDMA_CM_EVENT_REJECTED);
	printf("Established %d\n", RDMA_CM_EVENT_ESTABLISHED);
	printf("Disconnected %d\n", RDMA_CM_EVENT_DISCONNECTED);
	printf("DeviceRemoved %d\n", RDMA_CM_EVENT_DEVICE_REMOVAL);
	printf("AddressChanged %d\n", RDMA_CM_EVENT_ADDR_CHANGE);
	printf("TimeWaitExit %d\n", RDMA_CM_EVENT_TIMEWAIT_EXIT);
	printf("option.ack %d\n", RDMA_OPTION_ID_ACK_TIMEOUT);
	return 0;
}
