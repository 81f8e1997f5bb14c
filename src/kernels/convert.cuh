// What happens to an element between a decoded chunk and an output:
//
//   register = load(stored bits)
//   for each step: register = round(step(register))
//   by channel: register = round(round(register - mean) / std)
//   output bits = store(register)
//
// A register is a signed or unsigned 64-bit integer, a float or a double; only the floating-point
// ones take steps. Every operation is rounded on its own and none is fused, so that the values are
// those of src/assemble/arithmetic.rs, bit for bit; of NaNs, only that they are NaNs. The host
// (src/assemble/conversion.rs) decides on the register and the steps, and the numbers below mirror
// it. Everything here is plain C++ too, so that the host can test it.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace convert {

constexpr int MAX_STEPS = 24;

// In the order of ElementType, then what is stored only.
enum Type : uint8_t {
  BOOL,
  INT8,
  INT16,
  INT32,
  INT64,
  UINT8,
  UINT16,
  UINT32,
  UINT64,
  FLOAT16,
  FLOAT32,
  FLOAT64,
  BFLOAT16,
  BYTE,  // a byte that stands for an entry of the table
};

enum Register : uint8_t { SIGNED, UNSIGNED, SINGLE, DOUBLE };

enum Code : uint8_t {
  MULTIPLY,
  ADD,
  SUBTRACT,
  DIVIDE,
  MASK,           // NaN where equal to the operand
  ROUND,          // to the type of the step
  TRUNCATE,       // towards zero, NaN becomes 0
  WRAP_UNSIGNED,  // whole numbers modulo the operand, a power of two: from 0
  WRAP_SIGNED,    // the same from minus half of the operand
  IS_TRUE,        // 0 or 1
};

enum Rounds : uint8_t { TO_REGISTER, TO_SINGLE, TO_HALF };

struct Step {
  double operand;
  uint8_t code;
  uint8_t rounds;
  uint8_t reserved[6];
};

struct Conversion {
  Step steps[MAX_STEPS];
  uint32_t step_count;
  uint8_t load;
  uint8_t store;
  uint8_t reg;
  uint8_t rounds;     // of the normalization by channel
  uint64_t channels;  // bytes from here to the Channels, 0: there are none
  uint64_t fill;      // the element that regions without a source are made of, by channel
  float table[256];
};

// What a channel is normalized by.
struct Channel {
  double mean, std;
};

template <typename To, typename From>
__device__ inline To bits_of(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

__device__ inline float half_to_single(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00) return bits_of<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // Moved into place the exponent is too small by 127 - 15, for numbers below the normal ones too.
  const uint32_t value = bits_of<uint32_t>(bits_of<float>(magnitude << 13) * 0x1p112f);
  return bits_of<float>(sign | value);
}

// To nearest, ties to even.
__device__ inline uint16_t single_to_half(float single) {
  const uint32_t bits = bits_of<uint32_t>(single), sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff, half;
  if (magnitude > 0x7f800000) {
    half = 0x7c00 | (magnitude >> 13 & 0x3ff);
    half += half == 0x7c00;
  } else if (magnitude >= 0x477ff000) {
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {
    // The sum has its last bit where a half of this size has it.
    half = bits_of<uint32_t>(bits_of<float>(magnitude) + 0.5f) - bits_of<uint32_t>(0.5f);
  } else {
    half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

__device__ inline uint16_t double_to_half(double value) {
  float single = static_cast<float>(value);
  const double back = static_cast<double>(single);
  if (back != value && value == value) {
    // Rounded to odd instead, after which a second rounding is as good as a single one.
    uint32_t bits = bits_of<uint32_t>(single);
    if (fabs(back) > fabs(value)) bits -= 1;
    single = bits_of<float>(bits | 1);
  }
  return single_to_half(single);
}

#ifdef __CUDA_ARCH__
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float sum(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double sum(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float quotient(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline double quotient(double a, double b) { return __ddiv_rn(a, b); }
#else
// To be compiled without contraction.
template <typename T>
T product(T a, T b) {
  return a * b;
}
template <typename T>
T sum(T a, T b) {
  return a + b;
}
template <typename T>
T quotient(T a, T b) {
  return a / b;
}
#endif

__device__ inline float nearest(float value) { return rintf(value); }
__device__ inline double nearest(double value) { return rint(value); }
__device__ inline float truncated(float value) { return truncf(value); }
__device__ inline double truncated(double value) { return trunc(value); }
__device__ inline float below(float value) { return floorf(value); }
__device__ inline double below(double value) { return floor(value); }

// A whole number into the range of that size of which so much lies below zero.
template <typename T>
__device__ T wrapped(T value, T range, T part_below) {
  return sum(value, -product(range, below(sum(quotient(value, range), part_below))));
}

// The nearest 64-bit integer, ties to even; the nearest there is if it is out of range, 0 for NaN.
template <typename T>
__device__ int64_t to_signed(T value) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return value;
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value);
  } else {
    if (value != value) return 0;
    if (value >= T(0x1p63)) return INT64_MAX;
    if (value <= T(-0x1p63)) return INT64_MIN;
    return static_cast<int64_t>(nearest(value));
  }
}

template <typename T>
__device__ uint64_t to_unsigned(T value) {
  if constexpr (std::is_same_v<T, uint64_t>) {
    return value;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return value < 0 ? 0 : static_cast<uint64_t>(value);
  } else {
    if (!(value > 0)) return 0;
    if (value >= T(0x1p64)) return UINT64_MAX;
    return static_cast<uint64_t>(nearest(value));
  }
}

template <typename To, typename T>
__device__ uint64_t saturated(T value) {
  if constexpr (std::is_signed_v<To>) {
    constexpr int64_t MOST = INT64_MAX >> (64 - 8 * sizeof(To)), LEAST = -MOST - 1;
    const int64_t integer = to_signed(value);
    return static_cast<uint64_t>(integer < LEAST ? LEAST : integer > MOST ? MOST : integer);
  } else {
    constexpr uint64_t MOST = UINT64_MAX >> (64 - 8 * sizeof(To));
    const uint64_t integer = to_unsigned(value);
    return integer > MOST ? MOST : integer;
  }
}

template <typename T>
__device__ uint64_t to_half(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return double_to_half(value);
  } else {
    // Integers that a float cannot hold are beyond the largest half.
    return single_to_half(static_cast<float>(value));
  }
}

template <int N, typename T, typename Function>
__device__ void each(T (&values)[N], Function function) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = function(values[i]);
}

template <int N, typename To, typename From, typename Function>
__device__ void each(const From (&from)[N], To (&to)[N], Function function) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = static_cast<To>(function(from[i]));
}

// Stored bits, in native byte order and with zeros above, into registers.
template <int N, typename T>
__device__ void load(const Conversion& conversion, const float* table, const uint64_t (&bits)[N],
                     T (&values)[N]) {
  constexpr bool FLOATS = std::is_floating_point_v<T>;
  switch (conversion.load) {
    case BOOL:
      return each(bits, values, [](uint64_t b) { return b != 0 ? 1 : 0; });
    case INT8:
      return each(bits, values, [](uint64_t b) { return static_cast<int8_t>(b); });
    case INT16:
      return each(bits, values, [](uint64_t b) { return static_cast<int16_t>(b); });
    case INT32:
      return each(bits, values, [](uint64_t b) { return static_cast<int32_t>(b); });
    case INT64:
      return each(bits, values, [](uint64_t b) { return static_cast<int64_t>(b); });
    case UINT8:
    case UINT16:
    case UINT32:
      return each(bits, values, [](uint64_t b) { return static_cast<uint32_t>(b); });
    case UINT64:
      return each(bits, values, [](uint64_t b) { return b; });
    default:
      break;
  }
  if constexpr (FLOATS) {
    switch (conversion.load) {
      case FLOAT16:
        return each(bits, values,
                    [](uint64_t b) { return half_to_single(static_cast<uint16_t>(b)); });
      case FLOAT32:
        return each(bits, values,
                    [](uint64_t b) { return bits_of<float>(static_cast<uint32_t>(b)); });
      case FLOAT64:
        return each(bits, values, [](uint64_t b) { return bits_of<double>(b); });
      case BFLOAT16:
        return each(bits, values,
                    [](uint64_t b) { return bits_of<float>(static_cast<uint32_t>(b) << 16); });
      default:
        return each(bits, values, [table](uint64_t b) { return table[b]; });
    }
  }
}

template <int N, typename T, typename Function>
__device__ void each_rounded(uint8_t rounds, T (&values)[N], Function function) {
  switch (rounds) {
    case TO_REGISTER:
      return each(values, function);
    case TO_SINGLE:
      return each(values,
                  [function](T x) { return static_cast<T>(static_cast<float>(function(x))); });
    default:
      return each(values, [function](T x) {
        return static_cast<T>(half_to_single(static_cast<uint16_t>(to_half(function(x)))));
      });
  }
}

template <int N, typename T>
__device__ void apply(const Step& step, T (&values)[N]) {
  const T operand = static_cast<T>(step.operand);
  switch (step.code) {
    case MULTIPLY:
      return each_rounded(step.rounds, values, [operand](T x) { return product(x, operand); });
    case ADD:
      return each_rounded(step.rounds, values, [operand](T x) { return sum(x, operand); });
    case SUBTRACT:
      return each_rounded(step.rounds, values, [operand](T x) { return sum(x, -operand); });
    case DIVIDE:
      return each_rounded(step.rounds, values, [operand](T x) { return quotient(x, operand); });
    case MASK:
      return each(values, [operand](T x) { return x == operand ? static_cast<T>(NAN) : x; });
    case ROUND:
      return each_rounded(step.rounds, values, [](T x) { return x; });
    case TRUNCATE:
      return each(values, [](T x) { return x == x ? truncated(x) : T(0); });
    case WRAP_UNSIGNED:
      return each(values, [operand](T x) { return wrapped(x, operand, T(0)); });
    case WRAP_SIGNED:
      return each(values, [operand](T x) { return wrapped(x, operand, T(0.5)); });
    default:
      return each(values, [](T x) { return x != 0 ? T(1) : T(0); });
  }
}

// Registers into output bits, the lowest of each.
template <int N, typename T>
__device__ void store(const Conversion& conversion, const T (&values)[N], uint64_t (&bits)[N]) {
  switch (conversion.store) {
    case BOOL:
      return each(values, bits, [](T x) { return x != 0 ? 1 : 0; });
    case INT8:
      return each(values, bits, [](T x) { return saturated<int8_t>(x); });
    case INT16:
      return each(values, bits, [](T x) { return saturated<int16_t>(x); });
    case INT32:
      return each(values, bits, [](T x) { return saturated<int32_t>(x); });
    case INT64:
      return each(values, bits, [](T x) { return saturated<int64_t>(x); });
    case UINT8:
      return each(values, bits, [](T x) { return saturated<uint8_t>(x); });
    case UINT16:
      return each(values, bits, [](T x) { return saturated<uint16_t>(x); });
    case UINT32:
      return each(values, bits, [](T x) { return saturated<uint32_t>(x); });
    case UINT64:
      return each(values, bits, [](T x) { return saturated<uint64_t>(x); });
    case FLOAT16:
      return each(values, bits, [](T x) { return to_half(x); });
    case FLOAT32:
      return each(values, bits, [](T x) { return bits_of<uint32_t>(static_cast<float>(x)); });
    default:
      return each(values, bits, [](T x) { return bits_of<uint64_t>(static_cast<double>(x)); });
  }
}

// Values are normalized in float or double, never in half.
template <int N, typename T>
__device__ void normalize(const Conversion& conversion, const uint32_t (&channels)[N],
                          T (&values)[N]) {
  const auto* numbers = reinterpret_cast<const Channel*>(
      reinterpret_cast<const char*>(&conversion) + conversion.channels);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Channel channel = numbers[channels[i]];
    T value = sum(values[i], -static_cast<T>(channel.mean));
    if (conversion.rounds == TO_SINGLE) value = static_cast<T>(static_cast<float>(value));
    value = quotient(value, static_cast<T>(channel.std));
    if (conversion.rounds == TO_SINGLE) value = static_cast<T>(static_cast<float>(value));
    values[i] = value;
  }
}

template <typename T, bool BY_CHANNEL, int N>
__device__ void convert_in(const Conversion& conversion, const float* table,
                           const uint32_t (&channels)[N], uint64_t (&bits)[N]) {
  T values[N];
  load(conversion, table, bits, values);
  if constexpr (std::is_floating_point_v<T>) {
    for (uint32_t i = 0; i < conversion.step_count; ++i) apply(conversion.steps[i], values);
    if constexpr (BY_CHANNEL) normalize(conversion, channels, values);
  }
  store(conversion, values, bits);
}

// Stored bits into output bits. `table` is that of the conversion, wherever it is at hand. The
// channels of the elements are read BY_CHANNEL only; what is normalized is a float or a double.
template <bool BY_CHANNEL, int N>
__device__ void elements(const Conversion& conversion, const float* table,
                         const uint32_t (&channels)[N], uint64_t (&bits)[N]) {
  if constexpr (!BY_CHANNEL) {
    switch (conversion.reg) {
      case SIGNED:
        return convert_in<int64_t, false>(conversion, table, channels, bits);
      case UNSIGNED:
        return convert_in<uint64_t, false>(conversion, table, channels, bits);
      default:
        break;
    }
  }
  if (conversion.reg == SINGLE) {
    return convert_in<float, BY_CHANNEL>(conversion, table, channels, bits);
  }
  return convert_in<double, BY_CHANNEL>(conversion, table, channels, bits);
}

}  // namespace convert
