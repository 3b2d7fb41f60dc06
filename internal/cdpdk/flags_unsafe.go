//go:build dpdk

package cdpdk

// #include "shim.h"
import "C"

// Offloads of ports and queues (rte_ethdev.h).
const (
	RxChecksum = C.RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | C.RTE_ETH_RX_OFFLOAD_UDP_CKSUM | C.RTE_ETH_RX_OFFLOAD_TCP_CKSUM
	RxScatter  = C.RTE_ETH_RX_OFFLOAD_SCATTER
	RxRSSHash  = C.RTE_ETH_RX_OFFLOAD_RSS_HASH
	RxTime     = C.RTE_ETH_RX_OFFLOAD_TIMESTAMP

	TxMultiSegs    = C.RTE_ETH_TX_OFFLOAD_MULTI_SEGS
	TxIPv4Checksum = C.RTE_ETH_TX_OFFLOAD_IPV4_CKSUM
	TxUDPChecksum  = C.RTE_ETH_TX_OFFLOAD_UDP_CKSUM
	TxTCPChecksum  = C.RTE_ETH_TX_OFFLOAD_TCP_CKSUM
	TxCutTCP       = C.RTE_ETH_TX_OFFLOAD_TCP_TSO
	TxCutUDP       = C.RTE_ETH_TX_OFFLOAD_UDP_TSO
	TxTime         = C.RTE_ETH_TX_OFFLOAD_SEND_ON_TIMESTAMP

	// SetupWhileRunning says in Info.DevCapa that a receive queue is set up while the port receives
	// by others.
	SetupWhileRunning = C.RTE_ETH_DEV_CAPA_RUNTIME_RX_QUEUE_SETUP
)

// What RSS hashes.
const (
	RSSIP       = C.RTE_ETH_RSS_IP
	RSSTCP      = C.RTE_ETH_RSS_TCP
	RSSUDP      = C.RTE_ETH_RSS_UDP
	RSSSCTP     = C.RTE_ETH_RSS_SCTP
	RSSEthernet = C.RTE_ETH_RSS_ETH
	RSSVLAN     = C.RTE_ETH_RSS_S_VLAN | C.RTE_ETH_RSS_C_VLAN
)

// Flags of received mbufs (rte_mbuf_core.h), and of those to send.
const (
	HashValid = C.RTE_MBUF_F_RX_RSS_HASH
	Marked    = C.RTE_MBUF_F_RX_FDIR_ID
	// ChecksumsGood, and what to look at: a mask has a further value for checksums that are not
	// computed yet, which has the bits of Good and others.
	ChecksumsGood  = C.RTE_MBUF_F_RX_IP_CKSUM_GOOD | C.RTE_MBUF_F_RX_L4_CKSUM_GOOD
	ChecksumsMask  = C.RTE_MBUF_F_RX_IP_CKSUM_MASK | C.RTE_MBUF_F_RX_L4_CKSUM_MASK
	ChecksumL4Mask = C.RTE_MBUF_F_RX_L4_CKSUM_MASK
	ChecksumL4None = C.RTE_MBUF_F_RX_L4_CKSUM_NONE

	AskIPv4         = C.RTE_MBUF_F_TX_IPV4
	AskIPv6         = C.RTE_MBUF_F_TX_IPV6
	AskIPv4Checksum = C.RTE_MBUF_F_TX_IP_CKSUM
	AskUDPChecksum  = C.RTE_MBUF_F_TX_UDP_CKSUM
	AskTCPChecksum  = C.RTE_MBUF_F_TX_TCP_CKSUM
	AskCutTCP       = C.RTE_MBUF_F_TX_TCP_SEG
	AskCutUDP       = C.RTE_MBUF_F_TX_UDP_SEG
)
