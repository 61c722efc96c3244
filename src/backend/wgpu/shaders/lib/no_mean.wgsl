fn key_mean_at(seq: u32, kv_head: u32) -> u32 {
    return 0u;
}
