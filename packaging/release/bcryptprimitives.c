// The only function of Windows' bcryptprimitives.dll that Rust's standard library calls, for Wine 8, which
// lacks this file. Used only for tests, and not part of an archive.
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T n_bytes) {
    return RtlGenRandom(data, (ULONG)n_bytes);
}
