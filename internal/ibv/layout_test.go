package ibv

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/lab/testenv"
)

// layouts are all structures that this package has of the header, by their names in C. Those in
// partial are the beginning of theirs.
var layouts = map[string]any{
	"ibv_device": cDevice{}, "ibv_context_ops": cOps{}, "ibv_context": cContext{}, "verbs_context": cExtended{},
	"ibv_pd": cPD{}, "ibv_mr": cMR{}, "ibv_mw": cMW{},
	"ibv_ah": cAH{}, "ibv_comp_channel": cChannel{}, "ibv_cq": cCQ{}, "ibv_srq": cSRQ{}, "ibv_qp": cQP{},
	"ibv_xrcd": cXRCD{}, "ibv_xrcd_init_attr": cXRCDInit{},
	"ibv_device_attr": cDeviceAttr{}, "ibv_device_attr_ex": cDeviceAttrEx{}, "ibv_port_attr": cPortAttr{},
	"ibv_gid_entry":   cGIDEntry{},
	"ibv_async_event": cAsyncEvent{}, "ibv_qp_cap": cQPCap{}, "ibv_qp_init_attr": cQPInit{},
	"ibv_qp_init_attr_ex": cQPInitEx{}, "ibv_ah_attr": cAHAttr{},
	"ibv_qp_attr": cQPAttr{}, "ibv_srq_attr": cSRQAttr{}, "ibv_srq_init_attr": cSRQInit{},
	"ibv_srq_init_attr_ex": cSRQInitEx{}, "ibv_send_wr": cSendWR{},
	"ibv_mw_bind_info": cBind{}, "ibv_recv_wr": cRecvWR{}, "ibv_sge": SGE{}, "ibv_wc": WC{},
	"ibv_cq_ex": cCQEx{}, "ibv_cq_init_attr_ex": cCQInitEx{}, "ibv_poll_cq_attr": cPollAttr{},
	"ibv_values_ex": cValuesEx{}, "ibv_flow_attr": cFlowAttr{}, "ibv_flow": cFlow{},
	"ibv_flow_spec_eth": cFlowEth{}, "ibv_flow_spec_ipv4": cFlowIPv4{}, "ibv_flow_spec_ipv4_ext": cFlowIPv4Ext{},
	"ibv_flow_spec_ipv6":    cFlowIPv6{},
	"ibv_flow_spec_tcp_udp": cFlowPorts{}, "ibv_flow_eth_filter": cEthFilter{},
	"ibv_flow_ipv4_ext_filter": cIPv4ExtFilter{}, "ibv_flow_ipv4_filter": cIPv4Filter{},
	"ibv_flow_ipv6_filter": cIPv6Filter{}, "ibv_flow_tcp_udp_filter": cPortsFilter{},
}

var partial = []string{"verbs_context", "ibv_cq", "ibv_srq", "ibv_qp"}

// unions are fields of ibv_send_wr that share words with those of layouts, with where they are
// expected.
var unions = map[string]uintptr{
	"wr.rdma.remote_addr": 40, "wr.rdma.rkey": 48, "wr.ud.ah": 40, "wr.ud.remote_qpn": 48, "wr.ud.remote_qkey": 52,
	"invalidate_rkey": 36,
}

// constants are the values of the header that this package has.
var constants = map[string]int64{
	"IBV_FLOW_ATTR_NORMAL": flowNormal, "IBV_FLOW_ATTR_ALL_DEFAULT": flowAllDefault, "IBV_FLOW_SPEC_ETH": flowSpecEth,
	"IBV_FLOW_SPEC_IPV4":     flowSpecIPv4,
	"IBV_FLOW_SPEC_IPV4_EXT": flowSpecIPv4Ext, "IBV_FLOW_SPEC_IPV6": flowSpecIPv6, "IBV_FLOW_SPEC_TCP": flowSpecTCP,
	"IBV_FLOW_SPEC_UDP": flowSpecUDP,
	"IBV_WC_EX_WITH_BYTE_LEN + IBV_WC_EX_WITH_QP_NUM": wcExStandard,
	"IBV_WC_EX_WITH_COMPLETION_TIMESTAMP":             wcExDeviceTime,
	"IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK":   wcExWallTime, "IBV_VALUES_MASK_RAW_CLOCK": valuesRawClock,
	"IBV_SEND_IP_CSUM":       int64(IPChecksum),
	"IBV_DEVICE_RAW_IP_CSUM": capRawChecksum, "IBV_RAW_PACKET_CAP_IP_CSUM": rawCapChecksum,
	"IBV_QPT_RC": int64(RC), "IBV_QPT_UC": int64(UC), "IBV_QPT_UD": int64(UD), "IBV_QPT_RAW_PACKET": int64(RawPacket),
	"IBV_QPT_XRC_SEND": int64(XRCSend),
	"IBV_QPT_XRC_RECV": int64(XRCRecv),
	"IBV_QPS_RESET":    int64(QPReset), "IBV_QPS_INIT": int64(QPInit), "IBV_QPS_RTR": int64(QPReadyToReceive),
	"IBV_QPS_RTS": int64(QPReadyToSend),
	"IBV_QPS_SQD": int64(QPSQDrained), "IBV_QPS_SQE": int64(QPSQError), "IBV_QPS_ERR": int64(QPError),
	"IBV_QPS_UNKNOWN": int64(QPUnknown),
	"IBV_QP_STATE":    maskState, "IBV_QP_CUR_STATE": maskCurState, "IBV_QP_EN_SQD_ASYNC_NOTIFY": maskSQDNotify,
	"IBV_QP_ACCESS_FLAGS": maskAccess,
	"IBV_QP_PKEY_INDEX":   maskPKeyIndex, "IBV_QP_PORT": maskPort, "IBV_QP_QKEY": maskQKey, "IBV_QP_AV": maskAV,
	"IBV_QP_PATH_MTU": maskPathMTU,
	"IBV_QP_TIMEOUT":  maskTimeout, "IBV_QP_RETRY_CNT": maskRetryCount, "IBV_QP_RNR_RETRY": maskRNRRetry,
	"IBV_QP_RQ_PSN":           maskRQPSN,
	"IBV_QP_MAX_QP_RD_ATOMIC": maskMaxRdAtomic, "IBV_QP_ALT_PATH": maskAltPath, "IBV_QP_MIN_RNR_TIMER": maskMinRNRTimer,
	"IBV_QP_SQ_PSN":             maskSQPSN,
	"IBV_QP_MAX_DEST_RD_ATOMIC": maskMaxDestRdAtomic, "IBV_QP_PATH_MIG_STATE": maskPathMigState, "IBV_QP_CAP": maskCap,
	"IBV_QP_DEST_QPN":   maskDestQPN,
	"IBV_WR_RDMA_WRITE": wrWrite, "IBV_WR_RDMA_WRITE_WITH_IMM": wrWriteImm, "IBV_WR_SEND": wrSend,
	"IBV_WR_SEND_WITH_IMM": wrSendImm,
	"IBV_WR_RDMA_READ":     wrRead, "IBV_WR_ATOMIC_CMP_AND_SWP": wrCmpSwap, "IBV_WR_ATOMIC_FETCH_AND_ADD": wrFetchAdd,
	"IBV_WR_LOCAL_INV": wrLocalInv,
	"IBV_WR_BIND_MW":   wrBindMW, "IBV_WR_SEND_WITH_INV": wrSendInv,
	"IBV_SEND_FENCE": int64(Fence), "IBV_SEND_SIGNALED": int64(Signaled), "IBV_SEND_SOLICITED": int64(Solicited),
	"IBV_SEND_INLINE": int64(Inline),
	"IBV_WC_SEND":     int64(OpSend), "IBV_WC_RDMA_WRITE": int64(OpWrite), "IBV_WC_RDMA_READ": int64(OpRead),
	"IBV_WC_COMP_SWAP": int64(OpCmpSwap),
	"IBV_WC_FETCH_ADD": int64(OpFetchAdd), "IBV_WC_BIND_MW": int64(OpBindMW), "IBV_WC_LOCAL_INV": int64(OpLocalInv),
	"IBV_WC_TSO":  int64(OpTSO),
	"IBV_WC_RECV": int64(OpRecv), "IBV_WC_RECV_RDMA_WITH_IMM": int64(OpRecvWrite),
	"IBV_WC_GRH": int64(FlagGRH), "IBV_WC_WITH_IMM": int64(FlagImm), "IBV_WC_IP_CSUM_OK": int64(FlagCsumOK),
	"IBV_WC_WITH_INV": int64(FlagInv),
	"IBV_WC_SUCCESS":  int64(Success), "IBV_WC_LOC_LEN_ERR": int64(LocLenErr),
	"IBV_WC_LOC_QP_OP_ERR":  int64(LocQPOpErr),
	"IBV_WC_LOC_EEC_OP_ERR": int64(LocEECOpErr),
	"IBV_WC_LOC_PROT_ERR":   int64(LocProtErr), "IBV_WC_WR_FLUSH_ERR": int64(WRFlushErr),
	"IBV_WC_MW_BIND_ERR": int64(MWBindErr), "IBV_WC_BAD_RESP_ERR": int64(BadRespErr),
	"IBV_WC_LOC_ACCESS_ERR": int64(LocAccessErr), "IBV_WC_REM_INV_REQ_ERR": int64(RemInvReqErr),
	"IBV_WC_REM_ACCESS_ERR": int64(RemAccessErr),
	"IBV_WC_REM_OP_ERR":     int64(RemOpErr), "IBV_WC_RETRY_EXC_ERR": int64(RetryExcErr),
	"IBV_WC_RNR_RETRY_EXC_ERR": int64(RNRRetryExcErr),
	"IBV_WC_FATAL_ERR":         int64(FatalErr), "IBV_WC_RESP_TIMEOUT_ERR": int64(RespTimeoutErr),
	"IBV_WC_GENERAL_ERR": int64(GeneralErr), "IBV_WC_TM_ERR": int64(TMErr),
	"IBV_WC_TM_RNDV_INCOMPLETE": int64(TMRndvIncomplete), "IBV_WC_REM_ABORT_ERR": int64(RemAbortErr),
	"IBV_WC_INV_EEC_STATE_ERR": int64(InvEECStateErr),
	"IBV_ACCESS_LOCAL_WRITE":   int64(LocalWrite), "IBV_ACCESS_REMOTE_WRITE": int64(RemoteWrite),
	"IBV_ACCESS_REMOTE_READ":   int64(RemoteRead),
	"IBV_ACCESS_REMOTE_ATOMIC": int64(RemoteAtomic), "IBV_ACCESS_MW_BIND": int64(MWBind),
	"IBV_ACCESS_ZERO_BASED":       int64(ZeroBased),
	"IBV_ACCESS_RELAXED_ORDERING": int64(RelaxedOrdering),
	"IBV_ACCESS_OPTIONAL_RANGE":   int64(optionalAccess),
	"IBV_EVENT_CQ_ERR":            int64(EventCQErr), "IBV_EVENT_QP_FATAL": int64(EventQPFatal),
	"IBV_EVENT_QP_REQ_ERR":    int64(EventQPReqErr),
	"IBV_EVENT_QP_ACCESS_ERR": int64(EventQPAccessErr), "IBV_EVENT_COMM_EST": int64(EventCommEst),
	"IBV_EVENT_SQ_DRAINED":   int64(EventSQDrained),
	"IBV_EVENT_DEVICE_FATAL": int64(EventDeviceFatal), "IBV_EVENT_PORT_ACTIVE": int64(EventPortActive),
	"IBV_EVENT_PORT_ERR": int64(EventPortErr),
	"IBV_EVENT_SRQ_ERR":  int64(EventSRQErr), "IBV_EVENT_SRQ_LIMIT_REACHED": int64(EventSRQLimit),
	"IBV_EVENT_QP_LAST_WQE_REACHED": int64(EventQPLastWQE),
	"IBV_EVENT_CLIENT_REREGISTER":   int64(EventClientReregister), "IBV_EVENT_GID_CHANGE": int64(EventGIDChange),
	"IBV_EVENT_WQ_FATAL": int64(EventWQFatal),
	"IBV_PORT_DOWN":      int64(PortDown), "IBV_PORT_ACTIVE": int64(PortActive),
	"IBV_PORT_ACTIVE_DEFER":     int64(PortActiveDefer),
	"IBV_LINK_LAYER_INFINIBAND": int64(LinkInfiniBand), "IBV_LINK_LAYER_ETHERNET": int64(LinkEthernet),
	"IBV_MTU_256": int64(MTU256), "IBV_MTU_1024": int64(MTU1024), "IBV_MTU_4096": int64(MTU4096),
	"IBV_GID_TYPE_IB": int64(GIDInfiniBand) - 1, "IBV_GID_TYPE_ROCE_V1": int64(GIDRoCEv1) - 1,
	"IBV_GID_TYPE_ROCE_V2": int64(GIDRoCEv2) - 1,
	"IBV_ATOMIC_NONE":      int64(AtomicNone), "IBV_ATOMIC_HCA": int64(AtomicHCA),
	"IBV_ATOMIC_GLOB": int64(AtomicGlobal),
	"IBV_DEVICE_XRC":  capXRC, "IBV_DEVICE_MEM_WINDOW_TYPE_2B": capWindow2B,
	"IBV_MW_TYPE_2": mwType2, "IBV_SRQT_XRC": srqTypeXRC,
	"IBV_SRQ_INIT_ATTR_TYPE + IBV_SRQ_INIT_ATTR_PD + IBV_SRQ_INIT_ATTR_XRCD + IBV_SRQ_INIT_ATTR_CQ": srqMaskXRC,
	"IBV_QP_INIT_ATTR_PD": qpMaskPD, "IBV_QP_INIT_ATTR_XRCD": qpMaskXRCD, "(intptr_t)__VERBS_ABI_IS_EXTENDED": -1,
}

// TestLayouts compiles a program against the installed header, which prints where every field is,
// and compares.
func TestLayouts(t *testing.T) {
	var c strings.Builder
	want := map[string]string{}
	line := func(name, format, expr string, v ...any) {
		fmt.Fprintf(&c, "\tprintf(\"%%s|%s\\n\", \"%s\", %s);\n", format, name, expr)
		want[name] = fmt.Sprint(v...)
	}
	fields := 0
	for _, s := range slices.Sorted(maps.Keys(layouts)) {
		typ := reflect.TypeOf(layouts[s])
		if !slices.Contains(partial, s) {
			line("sizeof "+s, "%zu", "sizeof(struct "+s+")", typ.Size())
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			tag := f.Tag.Get("c")
			if tag == "" {
				if f.Name != "_" {
					t.Errorf("%s.%s has no tag", typ.Name(), f.Name)
				}
				continue
			}
			fields++
			at := fmt.Sprintf("offsetof(struct %s, %s)", s, tag)
			if s == "verbs_context" { // it is looked at from its end
				at += fmt.Sprintf(" - offsetof(struct verbs_context, context) + %d", typ.Size())
			}
			line(s+"."+tag, "%zu %zu", fmt.Sprintf("%s, sizeof(((struct %s *)0)->%s)", at, s, tag), f.Offset, " ",
				f.Type.Size())
		}
	}
	for tag, at := range unions {
		line("ibv_send_wr."+tag, "%zu", "offsetof(struct ibv_send_wr, "+tag+")", at)
	}
	for name, v := range constants {
		line(name, "%lld", "(long long)"+name, v)
	}
	src := filepath.Join(t.TempDir(), "layout.c")
	program := "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\nint " +
		"main(void)\n{\n" + c.String() + "\treturn 0;\n}\n"
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	have := filepath.Join(t.TempDir(), "have.c")
	if err := os.WriteFile(have, []byte("#include <infiniband/verbs.h>\nint main(void) { return 0; }\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := testenv.Compile("verbs-header", []string{have}); err != nil {
		testenv.Missing(t, "a C compiler and <infiniband/verbs.h> (apt-get install gcc libc6-dev libibverbs-dev)", err)
	}
	bin, err := testenv.Compile("verbs-layout", []string{src})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for l := range strings.Lines(string(out)) {
		name, got, ok := strings.Cut(strings.TrimSpace(l), "|")
		if !ok {
			t.Fatalf("line %q", l)
		}
		n++
		if got != want[name] {
			t.Errorf("%s: %s in the header, %s here", name, got, want[name])
		}
	}
	if n != len(want) || fields < 250 {
		t.Errorf("%d of %d values, %d fields", n, len(want), fields)
	}
}
