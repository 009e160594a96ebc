// Stands in for csrc/common/cuda/device.h, so that a host compiler builds the kernels and a machine without a
// GPU runs them: every thread of a block is a fiber, and barriers and shuffles switch to the next one.
//
// Blocks follow each other, so __shared__ is static. With ROBUSTDML_EMULATION_REVERSE=1 blocks and threads
// run from last to first: a kernel whose threads wait for each other where they must gives the same bits.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

#define CUDART_VERSION 13000

namespace robustdml::cuda {

enum cudaError_t { cudaSuccess, cudaErrorInvalidDevice };

// Two devices; stream 0 is of every one, stream 1 of device 0, stream 2 of device 1.
constexpr int kDevices = 2;
inline thread_local int current_device = 0;

inline cudaError_t cudaSetDevice(int index) {
    if (index < 0 || index >= kDevices) return cudaErrorInvalidDevice;
    current_device = index;
    return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "invalid device ordinal";
}

inline cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

using half = _Float16;

struct bfloat16 {
    std::uint16_t bits;
    explicit bfloat16(float value) {
        std::uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        if (std::isnan(value))
            word |= 0x400000u;
        else
            word += 0x7fffu + ((word >> 16) & 1u);  // to nearest, ties to even
        bits = static_cast<std::uint16_t>(word >> 16);
    }
    operator float() const {
        const std::uint32_t word = std::uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &word, sizeof value);
        return value;
    }
};

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    explicit dim3(unsigned x, unsigned y = 1) : x(x), y(y) {}
    dim3() = default;
};

inline dim3 threadIdx, blockIdx;

// The threads of one block, taking turns.
class Block {
  public:
    Block(dim3 shape, const std::function<void()>& kernel)
        : shape_(shape), kernel_(kernel), threads_(shape.x * shape.y), warps_((threads_.size() + 31) / 32) {}

    void run(bool reverse) {
        running = this;
        while (fibers.size() < threads_.size()) fibers.push_back(std::make_unique<Fiber>());
        while (done_ < threads_.size()) {
            bool any = false;
            // A warp goes on until it waits for another: what it overwrites too early the others have not
            // read.
            for (std::size_t i = 0; i < warps_.size(); ++i) {
                const std::size_t first = 32 * (reverse ? warps_.size() - 1 - i : i);
                const std::size_t count = std::min<std::size_t>(32, threads_.size() - first);
                do {
                    progress_ = false;
                    for (std::size_t lane = 0; lane < count; ++lane) {
                        const std::size_t t = first + (reverse ? count - 1 - lane : lane);
                        if (!threads_[t].done) resume(t);
                    }
                    any |= progress_;
                } while (progress_);
            }
            if (!any) {
                fibers.clear();  // each is in the midst of this kernel
                throw std::runtime_error("threads of a block wait for each other for ever");
            }
        }
    }

    void barrier() {
        const std::size_t mine = barriers_;
        ++waiting_;
        progress_ = true;
        release();
        while (barriers_ == mine) yield();
    }

    template <class T>
    T shuffle_xor(T value, int mask) {
        Warp& warp = warps_[current_ / 32];
        const std::size_t lane = current_ % 32, mine = threads_[current_].shuffles++;
        // Two buffers in turn: no thread is more than one shuffle ahead of its warp.
        std::memcpy(&warp.slot[mine % 2][lane], &value, sizeof value);
        ++warp.arrivals;
        progress_ = true;
        while (warp.arrivals < (mine + 1) * 32) yield();
        std::memcpy(&value, &warp.slot[mine % 2][lane ^ mask], sizeof value);
        return value;
    }

    static inline Block* running = nullptr;

  private:
    struct Thread {
        std::size_t shuffles = 0;
        bool done = false;
    };
    struct Warp {
        std::uint64_t slot[2][32];
        std::size_t arrivals = 0;
    };

    // Runs a thread of one block after another, and waits in between.
    struct Fiber {
        Fiber() {
            getcontext(&context);
            context.uc_stack.ss_sp = stack.get();
            context.uc_stack.ss_size = kStack;
            makecontext(
                &context,
                [] {
                    while (true) running->body();
                },
                0);
        }
        static constexpr std::size_t kStack = 64 << 10;
        std::unique_ptr<char[]> stack{new char[kStack]};
        ucontext_t context;
        jmp_buf place;  // where it goes on
        bool begun = false;
    };
    static inline std::vector<std::unique_ptr<Fiber>> fibers;
    static inline ucontext_t scheduler;
    static inline jmp_buf scheduler_place;

    void body() {
        kernel_();
        threads_[current_].done = true;
        ++done_;
        progress_ = true;
        release();
        yield();
    }

    // Threads that have returned are not waited for.
    void release() {
        if (waiting_ == 0 || waiting_ + done_ < threads_.size()) return;
        waiting_ = 0;
        ++barriers_;
    }

    // swapcontext asks the system for the signal mask at every switch. Jumps don't, but AddressSanitizer
    // knows no jump from one stack to another.
#ifdef __SANITIZE_ADDRESS__
    static void switch_to(Fiber& fiber) { swapcontext(&scheduler, &fiber.context); }
    static void switch_back(Fiber& fiber) { swapcontext(&fiber.context, &scheduler); }
#else
    static void switch_to(Fiber& fiber) {
        if (_setjmp(scheduler_place) != 0) return;
        if (fiber.begun) _longjmp(fiber.place, 1);
        fiber.begun = true;
        setcontext(&fiber.context);
    }
    static void switch_back(Fiber& fiber) {
        if (_setjmp(fiber.place) == 0) _longjmp(scheduler_place, 1);
    }
#endif

    void resume(std::size_t t) {
        current_ = t;
        threadIdx.x = t % shape_.x;
        threadIdx.y = t / shape_.x;
        switch_to(*fibers[t]);
    }

    void yield() { switch_back(*fibers[current_]); }

    dim3 shape_;
    const std::function<void()>& kernel_;
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::size_t current_ = 0, done_ = 0, waiting_ = 0, barriers_ = 0;
    bool progress_ = false;
};

inline void __syncthreads() {
    Block::running->barrier();
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return Block::running->shuffle_xor(value, mask);
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, std::uintptr_t stream,
            Arguments&&... arguments) {
    if (stream != 0 && stream != static_cast<std::uintptr_t>(current_device) + 1)
        throw std::runtime_error(std::string("CUDA kernel ") + name +
                                 " could not be launched: the stream is of another device");
    if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || block.x * block.y > 1024)
        throw std::runtime_error(std::string("CUDA kernel ") + name + " could not be launched: bad grid");
    const bool reverse = std::getenv("ROBUSTDML_EMULATION_REVERSE") != nullptr;
    const std::function<void()> call = [&] { kernel(arguments...); };
    for (unsigned i = 0; i < grid.x * grid.y; ++i) {
        const unsigned b = reverse ? grid.x * grid.y - 1 - i : i;
        blockIdx.x = b % grid.x;
        blockIdx.y = b / grid.x;
        Block(block, call).run(reverse);
    }
}

}  // namespace robustdml::cuda
