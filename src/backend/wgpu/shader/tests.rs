//! Checks every variant of every kernel, without a device: it is valid WGSL, its buffers match its layout,
//! and it translates to Metal and DirectX 12, so that such errors are found without a Mac.

use std::collections::HashSet;
use std::sync::LazyLock;

use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, BinaryOperator, Expression, Module, StorageAccess};

use super::{Binding, Caps, Kernel, LANES, ROWS, TILE, WEIGHT_FORMATS};

/// Every kernel for every combination of capabilities.
static VARIANTS: LazyLock<Vec<(String, Kernel, Module, ModuleInfo)>> = LazyLock::new(|| {
    let (mut variants, mut seen) = (Vec::new(), HashSet::new());
    for kernel in Kernel::all() {
        for subgroups in [false, true] {
            for packed in [false, true] {
                let name = format!("{}, subgroups: {subgroups}, packed: {packed}", kernel.name());
                let text = kernel.source(Caps { subgroups, packed, browser: false, lanes: LANES });
                if !seen.insert(text.clone()) {
                    continue;
                }
                let module = naga::front::wgsl::parse_str(&text)
                    .unwrap_or_else(|err| panic!("{name}: {}", err.emit_to_string(&text)));
                let mut allowed = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
                allowed.set(Capabilities::SUBGROUP, subgroups);
                let mut validator = Validator::new(ValidationFlags::all(), allowed);
                let info = validator
                    .validate(&module)
                    .unwrap_or_else(|err| panic!("{name}: {}", err.emit_to_string(&text)));
                variants.push((name, kernel, module, info));
            }
        }
    }
    variants
});

#[test]
fn every_variant_is_valid_and_has_the_buffers_of_its_layout() {
    for (name, kernel, module, _) in VARIANTS.iter() {
        let mut found: Vec<(u32, Binding)> = Vec::new();
        for (_, variable) in module.global_variables.iter() {
            let Some(at) = &variable.binding else { continue };
            assert_eq!(at.group, 0, "{name}");
            match variable.space {
                AddressSpace::Uniform => assert_eq!(at.binding, 0, "{name}"),
                AddressSpace::Storage { access } => {
                    let writes = access.contains(StorageAccess::STORE);
                    found.push((at.binding, if writes { Binding::Write } else { Binding::Read }));
                }
                space => panic!("{name}: a binding in {space:?}"),
            }
        }
        found.sort_by_key(|(at, _)| *at);
        let want: Vec<_> = (1..).zip(kernel.bindings().iter().copied()).collect();
        assert_eq!(found, want, "{name}");
    }
}

/// WGSL sets a variable without an initial value to zero each time its declaration is reached. Some browsers'
/// compilers do so once per call, so that a loop iteration sees the value of the iteration before.
#[test]
fn variables_of_loops_begin_with_a_value() {
    for kernel in Kernel::all() {
        let text = kernel.source(Caps { subgroups: false, packed: true, browser: true, lanes: LANES });
        // For each open block, true if it is a loop body.
        let mut blocks: Vec<bool> = Vec::new();
        for line in text.lines().map(str::trim) {
            let is_bare = line.starts_with("var ") && line.contains(": ") && !line.contains('=');
            assert!(!is_bare || !blocks.contains(&true), "{}: {line}", kernel.name());
            let is_loop = ["for ", "while ", "loop "].iter().any(|word| line.starts_with(word));
            for c in line.chars() {
                match c {
                    '{' => blocks.push(is_loop),
                    '}' => {
                        blocks.pop();
                    }
                    _ => {}
                }
            }
        }
        assert!(blocks.is_empty(), "{}", kernel.name());
    }
}

/// Loops that are not counted: the name of the file, the line, and why they end.
const WHILES: [(&str, &str, &str); 4] = [
    ("sample.wgsl", "while (size < n) {", "size doubles"),
    ("sample.wgsl", "while (at > 0u && weights[at] <= 0.0) {", "at falls"),
    ("sample.wgsl", "while (n > 1u && logit_of(kept[n - 1u]) < logit_of(first) + how.least) {", "n falls"),
    ("conv.wgsl", "while (row >= run.first + run.rows) {", "the row is in a run of the step"),
];

/// Loops have no counters that would end them (trusted.rs). Those of `for` count a variable that their bodies
/// do not change.
#[test]
fn loops_end() {
    for (file, text) in super::texts() {
        let lines: Vec<&str> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if line.starts_with("while") || line.starts_with("loop") {
                let is_known = WHILES.iter().any(|(of, known, _)| *of == file && known == line);
                assert!(is_known, "{file}: {line}: say in WHILES why it ends");
            }
            let Some(header) = line.strip_prefix("for (var ") else {
                assert!(!line.starts_with("for "), "{file}: {line}");
                continue;
            };
            let parts: Vec<&str> = header.split("; ").collect();
            let [begin, until, step] = parts[..] else { panic!("{file}: {line}") };
            let name = begin.split(' ').next().expect("a word");
            let counts = |text: &str| {
                let rest = text.strip_prefix(name);
                let changes = ["++", "--", " += ", " -= ", " *= ", " /= "];
                rest.is_some_and(|rest| changes.iter().any(|change| rest.starts_with(change)))
            };
            assert!(counts(step) && until.contains(name), "{file}: {line}");
            let mut depth = 1;
            for inner in &lines[i + 1..] {
                depth += inner.matches('{').count() - inner.matches("#{").count();
                depth -= inner.matches('}').count() - inner.matches("#{").count();
                if depth == 0 {
                    break;
                }
                let is_changed = counts(inner) || inner.starts_with(&format!("{name} = "));
                assert!(!is_changed, "{file}: {line}: {inner}");
            }
        }
    }
}

#[test]
fn workgroup_memory_is_what_every_device_has() {
    for (name, _, module, _) in VARIANTS.iter() {
        let shared = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
        let bytes: u32 = shared.map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx())).sum();
        assert!(bytes <= 16 << 10, "{name}: {bytes} bytes");
    }
}

/// Compilers for fast math, as Metal's, assume that there are no NaNs, so that `x != x` is false.
#[test]
fn nan_is_found_by_its_bits() {
    for (name, _, module, _) in VARIANTS.iter() {
        let functions = module.functions.iter().map(|(_, function)| function);
        for function in functions.chain(module.entry_points.iter().map(|entry| &entry.function)) {
            let compares_itself = function.expressions.iter().any(|(_, expression)| match expression {
                Expression::Binary { op: BinaryOperator::NotEqual | BinaryOperator::Equal, left, right } => {
                    left == right
                }
                _ => false,
            });
            assert!(!compares_itself, "{name}: {:?} compares a value with itself", function.name);
        }
    }
}

#[test]
fn every_variant_becomes_metal() {
    for (name, kernel, module, info) in VARIANTS.iter() {
        let mut resources = msl::EntryPointResources { sizes_buffer: Some(30), ..Default::default() };
        for at in 0..=kernel.bindings().len() as u32 {
            let target = msl::BindTarget { buffer: Some(at as u8), mutable: true, ..Default::default() };
            resources.resources.insert(naga::ResourceBinding { group: 0, binding: at }, target);
        }
        let options = msl::Options {
            lang_version: (2, 4),
            per_entry_point_map: [("main".to_owned(), resources)].into(),
            fake_missing_bindings: false,
            ..Default::default()
        };
        let (text, _) = msl::write_string(module, info, &options, &msl::PipelineOptions::default())
            .unwrap_or_else(|err| panic!("{name}: {err}"));
        assert!(text.contains("kernel void main_"), "{name}");
    }
}

#[test]
fn every_variant_becomes_hlsl() {
    for (name, _, module, info) in VARIANTS.iter() {
        let options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_4,
            fake_missing_bindings: true,
            ..Default::default()
        };
        let pipeline = hlsl::PipelineOptions::default();
        let mut text = String::new();
        hlsl::Writer::new(&mut text, &options, &pipeline)
            .write(module, info, None)
            .unwrap_or_else(|err| panic!("{name}: {err}"));
        assert!(text.contains("numthreads"), "{name}");
    }
}

#[test]
#[ignore = "writes files: every variant's text, for scripts/kernels/tint, to read or to compare commits"]
fn write_every_variant() {
    let dir = std::env::temp_dir().join("sterna-wgsl");
    for (folder, browser) in [("native", false), ("browser", true)] {
        let folder = dir.join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        for kernel in Kernel::all() {
            for (subgroups, packed) in [(false, false), (false, true), (true, false), (true, true)] {
                let file = format!("{}-{subgroups}-{packed}.wgsl", kernel.name());
                let text = kernel.source(Caps { subgroups, packed, browser, lanes: LANES });
                std::fs::write(folder.join(file), text).unwrap();
            }
        }
    }
    println!("{}", dir.display());
}

#[test]
#[ignore = "writes files: SPIR-V of products of few rows by every type, for scripts/kernels/wgpu-isa"]
fn write_spirv() {
    // As wgpu does on Vulkan for the modules of trusted.rs.
    let options = spv::Options {
        lang_version: (1, 5),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            ..BoundsCheckPolicies::default()
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        ..spv::Options::default()
    };
    let dir = std::env::temp_dir().join("sterna-spirv");
    std::fs::create_dir_all(&dir).unwrap();
    let formats = WEIGHT_FORMATS.iter().filter(|format| format.ty.is(format.kernels));
    let kernels = formats.flat_map(|format| {
        let (ty, ints) = (format.ty.name(), format.ints);
        let of =
            move |rows| Kernel::Linear { stage: "proj_add", ty, ints, rows, experts: false, normed: false };
        ROWS.into_iter().filter(|rows| *rows < TILE).map(of)
    });
    for kernel in kernels {
        let name = kernel.name();
        let text = kernel.source(Caps { subgroups: true, packed: true, browser: false, lanes: LANES });
        let module = naga::front::wgsl::parse_str(&text).unwrap();
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
        let info = validator.validate(&module).unwrap();
        let words = spv::write_vec(&module, &info, &options, None).unwrap();
        // Weights that a turn of the main loop multiplies.
        let (format, ints) = kernel.of_weights().unwrap();
        let weights = format.chunk_elems as u32 * format.weight_rows(ints, kernel.tile(LANES)[1]);
        std::fs::write(dir.join(format!("{name}.{weights}.spv")), bytemuck::cast_slice(&words)).unwrap();
    }
    println!("{}", dir.display());
}
