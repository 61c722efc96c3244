// The one function of Windows' bcryptprimitives.dll that Rust's standard library calls, for Wine 8, which has
// no such file. It is only for the trial, and in no archive.
#include <windows.h>
#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T n_bytes) {
    return RtlGenRandom(data, (ULONG)n_bytes);
}
