package ibv

// GRHLen is how many bytes at the beginning of a received datagram belong to its global routing
// header, whether there is one (FlagGRH) or not.
const GRHLen = 40
