"""Compiles SPIR-V for an AMD GPU that is not there: RADV, Mesa's Vulkan driver, on its null device. It
compiles and does not run.

Needs Mesa's Vulkan drivers (Debian: mesa-vulkan-drivers) and no headers: the structures are declared here, as
in the Vulkan specification.
"""

import contextlib
import ctypes
import glob
import os
import re
import tempfile
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_size_t, c_uint32, c_uint64, c_void_p, cast

# RDNA 3: a Radeon RX 7900 XTX.
FAMILY = "GFX1100"
CAPTURE_STATISTICS, CAPTURE_INTERNAL_REPRESENTATIONS = 0x40, 0x80
UNIFORM_BUFFER, STORAGE_BUFFER, COMPUTE = 6, 7, 0x20
MOST_STORAGE_BUFFERS = 10


def struct(*fields):
    """A structure type. Those that begin with sType and pNext have these two fields first."""
    return type("Struct", (ctypes.Structure,), {"_fields_": list(fields)})


HEAD = (("type", c_uint32), ("next", c_void_p))
FLAGS = ("flags", c_uint32)
ApplicationInfo = struct(
    *HEAD, ("name", c_char_p), ("version", c_uint32), ("engine", c_char_p), ("engine_version", c_uint32),
    ("api_version", c_uint32)
)
InstanceInfo = struct(
    *HEAD, FLAGS, ("application", POINTER(ApplicationInfo)), ("n_layers", c_uint32), ("layers", c_void_p),
    ("n_extensions", c_uint32), ("extensions", c_void_p)
)
QueueInfo = struct(
    *HEAD, FLAGS, ("family", c_uint32), ("n_queues", c_uint32), ("priorities", POINTER(c_float))
)
DeviceInfo = struct(
    *HEAD, FLAGS, ("n_queues", c_uint32), ("queues", POINTER(QueueInfo)), ("n_layers", c_uint32),
    ("layers", c_void_p), ("n_extensions", c_uint32), ("extensions", POINTER(c_char_p)),
    ("features", c_void_p)
)
ExecutableFeatures = struct(*HEAD, ("is_on", c_uint32))
RobustnessFeatures = struct(*HEAD, ("buffers", c_uint32), ("images", c_uint32), ("null", c_uint32))
ModuleInfo = struct(*HEAD, FLAGS, ("bytes", c_size_t), ("code", c_char_p))
BindingInfo = struct(
    ("binding", c_uint32), ("kind", c_uint32), ("count", c_uint32), ("stages", c_uint32),
    ("samplers", c_void_p)
)
SetLayoutInfo = struct(*HEAD, FLAGS, ("n_bindings", c_uint32), ("bindings", POINTER(BindingInfo)))
LayoutInfo = struct(
    *HEAD, FLAGS, ("n_sets", c_uint32), ("sets", POINTER(c_uint64)), ("n_constants", c_uint32),
    ("constants", c_void_p)
)
StageInfo = struct(
    *HEAD, FLAGS, ("stage", c_uint32), ("module", c_uint64), ("name", c_char_p), ("constants", c_void_p)
)
PipelineInfo = struct(
    *HEAD, FLAGS, ("stage", StageInfo), ("layout", c_uint64), ("base", c_uint64), ("base_at", ctypes.c_int32)
)
ExecutableInfo = struct(*HEAD, ("pipeline", c_uint64), ("at", c_uint32))
Statistic = struct(
    *HEAD, ("name", c_char * 256), ("description", c_char * 256), ("format", c_uint32), ("value", c_uint64)
)
Representation = struct(
    *HEAD, ("name", c_char * 256), ("description", c_char * 256), ("is_text", c_uint32), ("bytes", c_size_t),
    ("data", c_void_p)
)


class Compiler:
    """A device of RADV's null device."""

    def __init__(self):
        drivers = glob.glob("/usr/share/vulkan/icd.d/radeon_icd*.json")
        if not drivers:
            raise FileNotFoundError("RADV was not found: install mesa-vulkan-drivers")
        os.environ.update(VK_ICD_FILENAMES=drivers[0], RADV_FORCE_FAMILY=FAMILY, NODEVICE_SELECT="1")
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        self.vk = ctypes.CDLL("libvulkan.so.1")
        self.vk.vkGetDeviceProcAddr.restype = c_void_p
        application = ApplicationInfo(type=0, api_version=(1 << 22) | (3 << 12))
        instance, n, physical = c_void_p(), c_uint32(1), c_void_p()
        info = InstanceInfo(type=1, application=ctypes.pointer(application))
        self.call("vkCreateInstance", byref(info), None, byref(instance))
        with quiet():
            self.call("vkEnumeratePhysicalDevices", instance, byref(n), byref(physical))
        properties = (c_uint32 * 1024)()
        self.vk.vkGetPhysicalDeviceProperties(physical, byref(properties))
        version = properties[1]
        self.version = f"Mesa {version >> 22}.{version >> 12 & 1023}.{version & 4095}, {FAMILY}"
        features = (c_uint32 * 55)(1)
        robustness = RobustnessFeatures(type=1000286000, buffers=1)
        executable = ExecutableFeatures(type=1000269000, is_on=1, next=address(robustness))
        extensions = (c_char_p * 2)(b"VK_KHR_pipeline_executable_properties", b"VK_EXT_robustness2")
        queue = QueueInfo(type=2, n_queues=1, priorities=ctypes.pointer(c_float(1)))
        info = DeviceInfo(
            type=3, next=address(executable), n_queues=1, queues=ctypes.pointer(queue), n_extensions=2,
            extensions=extensions, features=address(features)
        )
        self.device = c_void_p()
        self.call("vkCreateDevice", physical, byref(info), None, byref(self.device))

    def call(self, name, *args):
        """Calls a function that returns a VkResult."""
        if (result := getattr(self.vk, name)(*args)) < 0:
            raise OSError(f"{name}: VkResult {result}")

    def create(self, name, info):
        made = c_uint64()
        self.call(name, self.device, byref(info), None, byref(made))
        return made

    def compile(self, spirv):
        """The statistics of a kernel, by name, and its assembly. Binding 0 is a uniform buffer, the others
        storage."""
        module = self.create("vkCreateShaderModule", ModuleInfo(type=16, bytes=len(spirv), code=spirv))
        kinds = [UNIFORM_BUFFER] + [STORAGE_BUFFER] * MOST_STORAGE_BUFFERS
        bindings = (BindingInfo * len(kinds))(*[(at, kind, 1, COMPUTE) for at, kind in enumerate(kinds)])
        of_set = SetLayoutInfo(type=32, n_bindings=len(kinds), bindings=bindings)
        layout_of_set = self.create("vkCreateDescriptorSetLayout", of_set)
        info = LayoutInfo(type=30, n_sets=1, sets=ctypes.pointer(layout_of_set))
        layout = self.create("vkCreatePipelineLayout", info)
        flags = CAPTURE_STATISTICS | CAPTURE_INTERNAL_REPRESENTATIONS
        info = PipelineInfo(type=29, flags=flags, layout=layout)
        info.stage = StageInfo(type=18, stage=COMPUTE, module=module, name=b"main")
        pipeline = c_uint64()
        self.call("vkCreateComputePipelines", self.device, c_uint64(0), 1, byref(info), None, byref(pipeline))
        of = ExecutableInfo(type=1000269003, pipeline=pipeline)
        statistics = self.all("vkGetPipelineExecutableStatisticsKHR", of, Statistic, 1000269004)
        texts = self.all("vkGetPipelineExecutableInternalRepresentationsKHR", of, Representation, 1000269005)
        assembly = next(text for text in texts if text.name == b"Assembly")
        # A second call copies the text.
        buffers = [ctypes.create_string_buffer(text.bytes) for text in texts]
        for text, buffer in zip(texts, buffers):
            text.data = address(buffer)
        self.all("vkGetPipelineExecutableInternalRepresentationsKHR", of, Representation, 0, texts)
        text = cast(assembly.data, c_char_p).value.decode()
        for kind, made in [
            ("Pipeline", pipeline), ("PipelineLayout", layout), ("DescriptorSetLayout", layout_of_set),
            ("ShaderModule", module),
        ]:
            getattr(self.vk, f"vkDestroy{kind}")(self.device, made, None)
        return {item.name.decode(): item.value for item in statistics}, text

    def all(self, name, of, kind, kind_id, items=None):
        """A list that Vulkan returns in two calls: the number of items, then these."""
        get = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_void_p, c_void_p)(
            self.vk.vkGetDeviceProcAddr(self.device, name.encode())
        )
        n = c_uint32(len(items) if items is not None else 0)
        if items is None:
            get(self.device, address(of), address(n), None)
            items = (kind * n.value)(*[kind(type=kind_id) for _ in range(n.value)])
        if get(self.device, address(of), address(n), address(items)) < 0:
            raise OSError(name)
        return items


def address(of):
    return cast(byref(of), c_void_p)


@contextlib.contextmanager
def quiet():
    """Without stderr: RADV warns that it is not a conformant driver."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def loops(assembly):
    """The innermost loops: lists of instructions from a label to the last branch back to it."""
    lines, labels = [], {}
    for line in assembly.splitlines():
        if label := re.match(r"\s*(BB\d+):", line):
            labels[label[1]] = len(lines)
        elif text := line.split(";")[0].strip():
            lines.append(text)
    spans = {}
    for at, line in enumerate(lines):
        branch = re.match(r"s_c?branch\S*\s+(BB\d+)", line)
        if branch and labels.get(branch[1], at + 1) <= at:
            first = labels[branch[1]]
            spans[first] = max(spans.get(first, at), at)
    spans = sorted(spans.items())
    inner = [(a, b) for a, b in spans if not any((c, d) != (a, b) and a <= c and d <= b for c, d in spans)]
    return [lines[a:b + 1] for a, b in inner]
