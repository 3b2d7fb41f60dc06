/* Half of the comparison with ffnvcodec/dynlink_cuda.h: the values of this project's header. */
#include "cuda_api.h"

#include "abi_names.h"

const long long abi_ours[] = {
#define X(name) (long long)name,
    ABI_NAMES(X)
#undef X
};
