/* Prints the offsets and sizes that the Go package writes down, as the kernel's headers have them. */
#include <linux/dcbnl.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <stddef.h>
#include <stdio.h>

#define P(name, value) printf("%s %zu\n", name, (size_t)(value))

int main(void) {
	P("specValue", offsetof(struct ethtool_rx_flow_spec, h_u));
	P("specValueExt", offsetof(struct ethtool_rx_flow_spec, h_ext));
	P("specMask", offsetof(struct ethtool_rx_flow_spec, m_u));
	P("specMaskExt", offsetof(struct ethtool_rx_flow_spec, m_ext));
	P("specCookie", offsetof(struct ethtool_rx_flow_spec, ring_cookie));
	P("specLocation", offsetof(struct ethtool_rx_flow_spec, location));
	P("specLen", sizeof(struct ethtool_rx_flow_spec));
	P("rxnfcFlowType", offsetof(struct ethtool_rxnfc, flow_type));
	P("rxnfcData", offsetof(struct ethtool_rxnfc, data));
	P("rxnfcSpec", offsetof(struct ethtool_rxnfc, fs));
	P("rxnfcCount", offsetof(struct ethtool_rxnfc, rule_cnt));
	P("rxnfcPlaces", offsetof(struct ethtool_rxnfc, rule_locs));
	P("rxnfcLen", sizeof(struct ethtool_rxnfc));
	P("rssHeader", offsetof(struct ethtool_rxfh, rss_config));
	P("rssTable", offsetof(struct ethtool_rxfh, indir_size));
	P("rssFunction", offsetof(struct ethtool_rxfh, hfunc));
	P("driver", sizeof(struct ethtool_drvinfo));
	P("driverBus", offsetof(struct ethtool_drvinfo, bus_info));
	P("linkHeader", offsetof(struct ethtool_link_settings, link_mode_masks));
	P("linkWords", offsetof(struct ethtool_link_settings, link_mode_masks_nwords));
	P("channels", sizeof(struct ethtool_channels));
	P("combined", offsetof(struct ethtool_channels, combined_count));
	P("rings", sizeof(struct ethtool_ringparam));
	P("ringTx", offsetof(struct ethtool_ringparam, tx_pending));
	P("coalesce", sizeof(struct ethtool_coalesce));
	P("adaptiveRx", offsetof(struct ethtool_coalesce, use_adaptive_rx_coalesce));
	P("txMicros", offsetof(struct ethtool_coalesce, tx_coalesce_usecs));
	P("timestamps", sizeof(struct ethtool_ts_info));
	P("rxFilters", offsetof(struct ethtool_ts_info, rx_filters));
	P("featuresBlock", sizeof(struct ethtool_get_features_block));
	P("maxMTU", IFLA_MAX_MTU);
	P("ip6TOS", offsetof(struct ethtool_tcpip6_spec, tclass));
	P("usr4Proto", offsetof(struct ethtool_usrip4_spec, proto));
	P("usr6Proto", offsetof(struct ethtool_usrip6_spec, l4_proto));
	P("extVLAN", offsetof(struct ethtool_flow_ext, vlan_tci));
	P("extMAC", offsetof(struct ethtool_flow_ext, h_dest));
	P("cmdSetRSS", ETHTOOL_SRSSH);
	P("cmdInsertRule", ETHTOOL_SRXCLSRLINS);
	P("cmdTimestamps", ETHTOOL_GET_TS_INFO);
	P("cmdLinkSettings", ETHTOOL_GLINKSETTINGS);
	P("cmdSetFeatures", ETHTOOL_SFEATURES);
	P("pause", sizeof(struct ethtool_pauseparam));
	P("pauseRx", offsetof(struct ethtool_pauseparam, rx_pause));
	P("stats", offsetof(struct ethtool_stats, data));
	P("cmdPause", ETHTOOL_GPAUSEPARAM);
	P("cmdCounters", ETHTOOL_GSTATS);
	P("stringsStats", ETH_SS_STATS);
	P("rtmGetDCB", RTM_GETDCB);
	P("dcbHeader", sizeof(struct dcbmsg));
	P("dcbIEEEGet", DCB_CMD_IEEE_GET);
	P("dcbName", DCB_ATTR_IFNAME);
	P("dcbIEEE", DCB_ATTR_IEEE);
	P("dcbPFC", DCB_ATTR_IEEE_PFC);
	P("dcbAppTable", DCB_ATTR_IEEE_APP_TABLE);
	P("dcbApp", DCB_ATTR_IEEE_APP);
	P("pfcLen", sizeof(struct ieee_pfc));
	P("pfcEnabled", offsetof(struct ieee_pfc, pfc_en));
	P("pfcRequests", offsetof(struct ieee_pfc, requests));
	P("pfcIndications", offsetof(struct ieee_pfc, indications));
	P("appLen", sizeof(struct dcb_app));
	P("appSelector", offsetof(struct dcb_app, selector));
	P("appPriority", offsetof(struct dcb_app, priority));
	P("appProtocol", offsetof(struct dcb_app, protocol));
	P("appDSCP", IEEE_8021QAZ_APP_SEL_DSCP);
	return 0;
}
