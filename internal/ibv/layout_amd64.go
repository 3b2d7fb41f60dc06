package ibv

//lint:file-ignore U1000 a structure has all its fields, also those that no code reads

// mutexSize is sizeof(pthread_mutex_t) of glibc and musl.
const mutexSize = 40
