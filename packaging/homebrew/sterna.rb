# Sterna for Homebrew: a prebuilt program on Linux, built from source on macOS.
class Sterna < Formula
  desc "Language models from GGUF files: command line, chat and server"
  homepage "@URL@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    url "@URL@/sterna-@VERSION@-source.tar.gz"
    sha256 "SHA256(sterna-@VERSION@-source.tar.gz)"
    depends_on "rust" => :build
  end

  on_linux do
    on_intel do
      url "@URL@/sterna-@VERSION@-x86_64-linux.tar.gz"
      sha256 "SHA256(sterna-@VERSION@-x86_64-linux.tar.gz)"
    end
    on_arm do
      url "@URL@/sterna-@VERSION@-aarch64-linux.tar.gz"
      sha256 "SHA256(sterna-@VERSION@-aarch64-linux.tar.gz)"
    end
  end

  def install
    if OS.mac?
      system "cargo", "install", *std_cargo_args, "--features", "@FEATURES@"
      generate_completions_from_executable(bin/"sterna", "completions")
      (buildpath/"man/sterna.1").write Utils.safe_popen_read(bin/"sterna", "man")
    else
      bin.install "sterna"
      bash_completion.install "completions/sterna.bash" => "sterna"
      zsh_completion.install "completions/_sterna"
      fish_completion.install "completions/sterna.fish"
    end
    man1.install "man/sterna.1"
  end

  service do
    run [opt_bin/"sterna", "serve"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/sterna --version")
    story = shell_output("#{bin}/sterna run --backend cpu -p 'Once upon a time' -n 8 --temp 0")
    refute_empty story.strip
  end
end
