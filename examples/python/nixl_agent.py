import penstock.nixl

penstock.nixl.install()                      # before the program imports nixl
from nixl._api import nixl_agent, nixl_agent_config

assert "DRAM" in nixl_agent("a").get_plugin_mem_types("UCX")
