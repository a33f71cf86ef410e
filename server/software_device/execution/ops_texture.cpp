// tex, tld4, suld, sust through texture and surface objects: PTX ISA 9.0, sections 9.7.10 and 9.7.11.
#include <cstring>

#include "server/software_device/execution/memory_access.hpp"
#include "server/software_device/execution/texture_sampling.hpp"

namespace gpuwire::software_device {
namespace {

using ptx::Instruction;
using ptx::Modifier;
using ptx::ModifierSet;
using ptx::Operand;
using ptx::Type;

// The coordinates of an instruction.
struct Geometry {
  Modifier word;
  uint8_t dimensions;  // of a layer
  bool layered;
  bool cube;
  uint8_t coordinates;  // number of coordinates that are used; a vector of three has a fourth, unused element
};

constexpr Geometry kGeometries[] = {
    {Modifier::dim_1d, 1, false, false, 1}, {Modifier::dim_2d, 2, false, false, 2},
    {Modifier::dim_3d, 3, false, false, 3}, {Modifier::dim_a1d, 1, true, false, 1},
    {Modifier::dim_a2d, 2, true, false, 2}, {Modifier::cube, 2, false, true, 3},
    {Modifier::acube, 2, true, true, 3},
};

enum class Kind : uint8_t { plain, level, derivatives, gather };

// Stored in Op::detail.
struct Form {
  uint8_t geometry = 0;
  Kind kind = Kind::plain;
  bool integer_coordinates = false;
  uint8_t channel = 0;  // of a gather

  uint16_t packed() const {
    return static_cast<uint16_t>(geometry | static_cast<unsigned>(kind) << 3 |
                                 static_cast<unsigned>(integer_coordinates) << 5 | static_cast<unsigned>(channel) << 6);
  }
  static Form of(uint16_t packed) {
    return {static_cast<uint8_t>(packed & 7), static_cast<Kind>(packed >> 3 & 3), (packed >> 5 & 1) != 0,
            static_cast<uint8_t>(packed >> 6 & 3)};
  }
};

class LaneAccess final : public TexelAccess {
 public:
  LaneAccess(Warp& warp, const Op& op, unsigned lane) : warp_(warp), op_(op), lane_(lane) {}
  bool readable(const uint8_t* texel, uint32_t bytes) override {
    return resolve_lane(warp_, op_, lane_, ptx::Space::global, reinterpret_cast<uint64_t>(texel), bytes,
                        AccessKind::load) != nullptr;
  }

 private:
  Warp& warp_;
  const Op& op_;
  unsigned lane_;
};

// Returns whether dimensions match. A two-dimensional image with one row can be read and written along that row.
bool same_dimensions(const Image& image, const Geometry& geometry) {
  return image.dimensions == geometry.dimensions ||
         (geometry.dimensions == 1 && image.dimensions == 2 && image.levels.front().height == 1);
}

bool same_shape(const Image& image, const Geometry& geometry) {
  return same_dimensions(image, geometry) && image.layered == geometry.layered && image.cube == geometry.cube;
}

// Caches the last lane's object, which is usually the next lane's, too.
template <class Object>
struct Found {
  uint64_t handle = 0;
  std::shared_ptr<const Object> object;
};

void refuse(Warp& w, const Op& op, unsigned lane, Fault fault, const char* what) { w.fault(fault, lane, op, what); }

// The arguments of the call site are: handle, layer, coordinates, then level or derivatives.
bool sample_lane(Warp& w, const Op& op, unsigned lane, const Texture& texture, TexelBits& bits) {
  const CallSite& site = w.function().calls[op.target];
  const Form form = Form::of(op.detail);
  const Geometry& geometry = kGeometries[form.geometry];
  size_t next = 1;
  auto word = [&] { return w.in<uint32_t>(site.arguments[next++].ref)[lane]; };
  auto real = [&] { return std::bit_cast<float>(word()); };
  LaneAccess access(w, op, lane);
  TextureCoordinates c;
  if (geometry.layered) c.layer = static_cast<int32_t>(word());
  if (form.integer_coordinates) {
    int32_t at[3] = {};
    for (unsigned d = 0; d < geometry.coordinates; ++d) at[d] = static_cast<int32_t>(word());
    return fetch(texture, at, c.layer, form.kind == Kind::level ? static_cast<int32_t>(word()) : 0, access, bits);
  }
  if (geometry.dimensions < texture.image.dimensions) c.at[1] = 0.5f;  // the middle of the only row, normalised or not
  for (unsigned d = 0; d < geometry.coordinates; ++d) c.at[d] = real();
  if (form.kind == Kind::gather) return gather(texture, c, form.channel, access, bits);
  if (form.kind == Kind::level) c.level = real();
  if (form.kind == Kind::derivatives) {
    float by_x[3] = {}, by_y[3] = {};
    for (unsigned d = 0; d < geometry.coordinates; ++d) by_x[d] = real();
    for (unsigned d = 0; d < geometry.coordinates; ++d) by_y[d] = real();
    c.level = level_of(texture, by_x, by_y);
  }
  return sample(texture, c, access, bits);
}

// op.ref[0]: whether the texels are resident, which is always true.
void handle_texture(Warp& w, const Op& op, uint32_t mask) {
  const CallSite& site = w.function().calls[op.target];
  const ImageTable* table = w.launch_->launch().images;
  Found<Texture> found;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t handle = w.in<uint64_t>(site.arguments[0].ref)[lane];
    if (found.object == nullptr || found.handle != handle)
      found = {handle, table == nullptr ? nullptr : table->texture(handle)};
    if (found.object == nullptr) return refuse(w, op, lane, Fault::illegal_address, "no such texture object");
    if (!same_shape(found.object->image, kGeometries[Form::of(op.detail).geometry])) {
      return refuse(w, op, lane, Fault::illegal_instruction,
                    "the texture object has another number of dimensions or layers than the instruction");
    }
    TexelBits bits;
    if (!sample_lane(w, op, lane, *found.object, bits)) return;
    for (unsigned k = 0; k < site.results.size(); ++k) w.out<uint32_t>(site.results[k].ref)[lane] = bits.channel[k];
  }
  if (op.definitions != 0) w.set_predicate(op.ref[0], mask, kAllLanes);
}

bool find_geometry(const Instruction& i, uint8_t& geometry) {
  unsigned found = 0;
  for (uint8_t g = 0; g < std::size(kGeometries); ++g) {
    if (!i.has(kGeometries[g].word)) continue;
    geometry = g;
    ++found;
  }
  return found == 1;
}

std::span<const Operand> elements_of(const Operand& operand) {
  if (operand.kind == Operand::Kind::vector) return operand.elements;
  return {&operand, 1};
}

// Converts [object, {coordinates}] to arguments.
bool lower_coordinates(Lowering& l, const Operand& operand, const Geometry& geometry, CallSite& site) {
  if (operand.kind != Operand::Kind::address || operand.elements.size() != 2 || operand.addend != 0) return false;
  if (l.register_bytes(operand.elements[0]) != 8)
    return l.unsupported("textures by name are not supported by the software device");
  site.arguments.push_back({l.source(operand.elements[0], Type::b64), 8});
  std::span<const Operand> given = elements_of(operand.elements[1]);
  size_t wanted = geometry.coordinates + (geometry.layered ? 1u : 0u);
  if (given.size() < wanted) return l.invalid("the instruction needs more coordinates");
  for (size_t k = 0; k < wanted; ++k) {
    site.arguments.push_back({l.source(given[k], given[k].kind == Operand::Kind::real ? Type::f32 : Type::b32), 4});
  }
  return true;
}

bool lower_vector_argument(Lowering& l, const Operand& operand, size_t count, CallSite& site) {
  std::span<const Operand> given = elements_of(operand);
  if (given.size() < count) return false;
  for (size_t k = 0; k < count; ++k)
    site.arguments.push_back({l.source(given[k], given[k].kind == Operand::Kind::real ? Type::f32 : Type::b32), 4});
  return true;
}

bool lower_texture(Lowering& l, const Instruction& i, Form form) {
  if (!i.has(Modifier::v4) || i.types.size() != 2 || ptx::size_of(i.type(0)) != 4 || ptx::size_of(i.type(1)) != 4)
    return false;
  if (!find_geometry(i, form.geometry)) return false;
  const Geometry& geometry = kGeometries[form.geometry];
  form.integer_coordinates = i.type(1) == Type::s32;
  if (!form.integer_coordinates && i.type(1) != Type::f32) return false;
  if (form.integer_coordinates && (geometry.cube || form.kind == Kind::derivatives || form.kind == Kind::gather))
    return false;
  if (form.kind == Kind::gather && geometry.coordinates != 2) return false;
  const size_t operands = form.kind == Kind::level ? 3 : form.kind == Kind::derivatives ? 4 : 2;
  if (i.operands.size() != operands) return false;  // offsets and depth comparison are not supported

  const bool pair = i.operands[0].kind == Operand::Kind::pair;
  const Operand& results = pair ? i.operands[0].elements[0] : i.operands[0];
  if (results.kind != Operand::Kind::vector || results.elements.size() != 4)
    return l.invalid("a texture instruction has four results");
  CallSite site;
  if (!lower_coordinates(l, i.operands[1], geometry, site)) return false;
  if (form.kind == Kind::level && !lower_vector_argument(l, i.operands[2], 1, site)) return false;
  if (form.kind == Kind::derivatives) {
    if (!lower_vector_argument(l, i.operands[2], geometry.coordinates, site) ||
        !lower_vector_argument(l, i.operands[3], geometry.coordinates, site))
      return false;
  }
  for (const Operand& element : results.elements) site.results.push_back({l.destination(element, i.type(0)), 4});
  if (pair) {
    l.emit(&handle_texture, {l.predicate_destination(i.operands[0].elements[1])}, {}).detail = form.packed();
  } else {
    l.emit(&handle_texture, {}, {}).detail = form.packed();
  }
  l.call_through(std::move(site));
  return true;
}

bool lower_tex(Lowering& l, const Instruction& i) {
  if (i.has(Modifier::level) && i.has(Modifier::grad)) return false;
  return lower_texture(l, i,
                       {.kind = i.has(Modifier::level)  ? Kind::level
                                : i.has(Modifier::grad) ? Kind::derivatives
                                                        : Kind::plain});
}

bool lower_tld4(Lowering& l, const Instruction& i) {
  constexpr Modifier kChannels[] = {Modifier::r, Modifier::g, Modifier::b, Modifier::a};
  for (uint8_t c = 0; c < 4; ++c) {
    if (i.has(kChannels[c])) return lower_texture(l, i, {.kind = Kind::gather, .channel = c});
  }
  return false;
}

enum class Boundary : uint8_t { trap, clamp, zero };

// Returns the address of a lane's texel; null if nothing is to be read or written, or after a fault.
uint8_t* locate_surface(Warp& w, const Op& op, unsigned lane, const Image& image, uint32_t bytes) {
  const CallSite& site = w.function().calls[op.target];
  const Geometry& geometry = kGeometries[op.detail & 7];
  const auto boundary = static_cast<Boundary>(op.detail >> 3 & 3);
  const ImageLevel& level = image.levels[0];
  size_t next = 1;
  auto word = [&] { return static_cast<int32_t>(w.in<uint32_t>(site.arguments[next++].ref)[lane]); };
  int64_t layer = geometry.layered ? word() : 0;
  int64_t at[3] = {};
  for (unsigned d = 0; d < geometry.coordinates; ++d) at[d] = word();
  const int64_t row_bytes = int64_t{level.width} * image.format.bytes();
  const int64_t last[3] = {row_bytes - bytes, int64_t{level.height} - 1,
                           (geometry.layered ? 1 : int64_t{level.depth}) - 1};
  const int64_t last_layer = int64_t{level.depth} - 1;
  bool outside = layer < 0 || (geometry.layered && layer > last_layer);
  for (unsigned d = 0; d < 3; ++d) outside |= at[d] < 0 || at[d] > last[d];
  if (outside && boundary == Boundary::trap) {
    refuse(w, op, lane, Fault::illegal_address, "surface access outside of the surface");
    return nullptr;
  }
  if (outside && boundary == Boundary::zero) return nullptr;
  for (unsigned d = 0; d < 3; ++d) at[d] = std::clamp<int64_t>(at[d], 0, std::max<int64_t>(last[d], 0));
  layer = std::clamp<int64_t>(layer, 0, last_layer);
  if (at[0] % bytes != 0) {
    refuse(w, op, lane, Fault::misaligned_address, "surface access at a byte that is no multiple of its size");
    return nullptr;
  }
  const int64_t slice = geometry.layered ? layer : at[2];
  uint8_t* place = level.base + static_cast<uint64_t>(slice) * level.slice_bytes +
                   static_cast<uint64_t>(at[1]) * level.row_bytes + at[0];
  if (image.backing == nullptr)
    return resolve_lane(w, op, lane, ptx::Space::global, reinterpret_cast<uint64_t>(place), bytes, AccessKind::store);
  return place;
}

// Calls body(lane, address or nullptr) for each lane until a fault. Surface instructions treat a cubemap's faces as
// layers.
template <class Body>
void each_surface_lane(Warp& w, const Op& op, uint32_t mask, uint32_t bytes, Body&& body) {
  const CallSite& site = w.function().calls[op.target];
  const ImageTable* table = w.launch_->launch().images;
  const Geometry& geometry = kGeometries[op.detail & 7];
  Found<Surface> found;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t handle = w.in<uint64_t>(site.arguments[0].ref)[lane];
    if (found.object == nullptr || found.handle != handle)
      found = {handle, table == nullptr ? nullptr : table->surface(handle)};
    if (found.object == nullptr) return refuse(w, op, lane, Fault::illegal_address, "no such surface object");
    const Image& image = found.object->image;
    if (!same_dimensions(image, geometry) || (image.layered || image.cube) != geometry.layered) {
      return refuse(w, op, lane, Fault::illegal_instruction,
                    "the surface object has another number of dimensions or layers than the instruction");
    }
    uint8_t* place = locate_surface(w, op, lane, image, bytes);
    if (w.stop_ == Warp::Stop::fault) return;
    body(lane, place);
  }
}

// op.count: elements; op.immediate: bytes of an element. Registers of 1-byte elements have 2 bytes.
void handle_surface_load(Warp& w, const Op& op, uint32_t mask) {
  const CallSite& site = w.function().calls[op.target];
  const auto element = static_cast<uint32_t>(op.immediate);
  each_surface_lane(w, op, mask, element * op.count, [&](unsigned lane, const uint8_t* place) {
    for (unsigned k = 0; k < op.count; ++k) {
      uint64_t value = 0;
      if (place != nullptr) std::memcpy(&value, place + size_t{k} * element, element);
      std::memcpy(w.out<uint8_t>(site.results[k].ref) + size_t{lane} * site.results[k].bytes, &value,
                  site.results[k].bytes);
    }
  });
}

void handle_surface_store(Warp& w, const Op& op, uint32_t mask) {
  const CallSite& site = w.function().calls[op.target];
  const auto element = static_cast<uint32_t>(op.immediate);
  const size_t first = site.arguments.size() - op.count;
  each_surface_lane(w, op, mask, element * op.count, [&](unsigned lane, uint8_t* place) {
    if (place == nullptr) return;
    for (unsigned k = 0; k < op.count; ++k) {
      const FrameSlot& value = site.arguments[first + k];
      std::memcpy(place + size_t{k} * element, w.in<uint8_t>(value.ref) + size_t{lane} * value.bytes, element);
    }
  });
}

bool lower_surface(Lowering& l, const Instruction& i) {
  const bool load = i.opcode == "suld";
  uint8_t geometry = 0;
  if (!i.has(Modifier::b) || i.types.size() != 1 || i.operands.size() != 2 || !find_geometry(i, geometry) ||
      kGeometries[geometry].cube)
    return false;
  const uint32_t element = ptx::size_of(i.type());
  if (i.has(Modifier::trap) + i.has(Modifier::clamp) + i.has(Modifier::zero) != 1 || element == 0) return false;
  const auto boundary = static_cast<unsigned>(i.has(Modifier::trap)    ? Boundary::trap
                                              : i.has(Modifier::clamp) ? Boundary::clamp
                                                                       : Boundary::zero);
  std::span<const Operand> values = elements_of(i.operands[load ? 0 : 1]);
  const size_t count = i.has(Modifier::v2) ? 2 : i.has(Modifier::v4) ? 4 : 1;
  if (values.size() != count || count * element > 16) return l.invalid("the vector has the wrong number of elements");
  CallSite site;
  if (!lower_coordinates(l, i.operands[load ? 1 : 0], kGeometries[geometry], site)) return false;
  for (const Operand& value : values) {
    uint32_t bytes = 0;
    if (load) {
      Ref result = l.wide_destination(value, i.type(), bytes);
      site.results.push_back({result, bytes});
    } else {
      Ref source = l.wide_source(value, i.type(), bytes);
      site.arguments.push_back({source, bytes});
    }
  }
  Op& op = l.emit(load ? &handle_surface_load : &handle_surface_store, {}, {});
  op.immediate = element;
  op.count = static_cast<uint8_t>(count);
  op.detail = static_cast<uint16_t>(geometry | boundary << 3);
  l.call_through(std::move(site));
  return true;
}

constexpr ModifierSet kGeometryWords(Modifier::dim_1d, Modifier::dim_2d, Modifier::dim_3d, Modifier::dim_a1d,
                                     Modifier::dim_a2d, Modifier::cube, Modifier::acube);
constexpr ModifierSet kSurfaceWords =
    kGeometryWords | ModifierSet(Modifier::b, Modifier::trap, Modifier::clamp, Modifier::zero, Modifier::v2,
                                 Modifier::v4, Modifier::ca, Modifier::cg, Modifier::cs, Modifier::cv, Modifier::wb,
                                 Modifier::wt);

const OpcodeEntry kOpcodes[] = {
    {"tex", kGeometryWords | ModifierSet(Modifier::v4, Modifier::level, Modifier::grad), lower_tex},
    {"tld4", kGeometryWords | ModifierSet(Modifier::v4, Modifier::r, Modifier::g, Modifier::b, Modifier::a),
     lower_tld4},
    {"suld", kSurfaceWords, lower_surface},
    {"sust", kSurfaceWords, lower_surface},
};

}  // namespace

std::span<const OpcodeEntry> texture_opcodes() { return kOpcodes; }

}  // namespace gpuwire::software_device
