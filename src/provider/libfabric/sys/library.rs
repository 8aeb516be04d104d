//! libfabric, loaded at run time.

use super::abi::{FabricAttr, FidFabric, InfoRaw};
use super::numbers as n;
use super::objects::Code;
use crate::base::descriptor::StandardHeld;
use crate::base::text::Text;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::fmt;
use core::mem::{size_of, transmute_copy};

/// The file, by the name that has stood since 2015.
pub const FILE: &CStr = c"libfabric.so.1";
/// The oldest API that we can use: before it, mode bits meant other things.
const OLDEST: u32 = n::version(1, 5);

/// Why the library cannot be used.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum LoadError {
    /// It cannot be loaded; why, in the loader's words.
    Missing(FileName, Reason),
    /// It has no such function.
    Lacks(FileName, &'static str),
    /// Its API is older than 1.5: this one.
    Old(u32),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            LoadError::Missing(file, why) if *file == file_name(FILE) => write!(
                f,
                "no libfabric: {file} cannot be loaded ({why}); the package libfabric1 has it"
            ),
            LoadError::Missing(file, why) => {
                write!(f, "no libfabric: {file} (CROSSTIE_OFI_LIBRARY) cannot be loaded ({why})")
            }
            LoadError::Lacks(file, name) => write!(f, "no libfabric: {file} has no {name}"),
            LoadError::Old(version) => write!(
                f,
                "no libfabric: its API is {}, and 1.5 is the oldest that can be used",
                VersionText(*version)
            ),
        }
    }
}

/// Longest part of a file's name that an error carries: its end, which tells files apart.
const FILE_NAME_BYTES: usize = 63;
/// Longest part of the loader's words that it carries: their end, which says what is wrong.
const REASON_BYTES: usize = 95;

/// What was to be loaded.
pub type FileName = Text<FILE_NAME_BYTES>;
/// Why it was not, without the file's name where the words begin with it: they begin with another
/// where that one is missing.
pub type Reason = Text<REASON_BYTES>;

fn file_name(file: &CStr) -> FileName {
    FileName::end(file.to_bytes())
}

/// What the loader says of the last call of this thread, which did not load `file`.
fn reason(file: &CStr) -> Reason {
    // SAFETY: takes nothing; what it gives stands until this thread calls the loader again.
    let said = unsafe { text(libc::dlerror()) };
    words_behind(file, said)
}

/// The words behind the file's name, if they begin with it.
fn words_behind(file: &CStr, said: &CStr) -> Reason {
    let said = said.to_bytes();
    let rest = said.strip_prefix(file.to_bytes()).and_then(|rest| rest.strip_prefix(b": "));
    Reason::end(rest.unwrap_or(said))
}

/// A version as people write it.
#[derive(Copy, Clone, Debug)]
pub struct VersionText(pub u32);

impl fmt::Display for VersionText {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 16, self.0 & 0xffff)
    }
}

/// The functions. They stay good for ever: the library is never unloaded.
#[derive(Copy, Clone, Debug)]
pub struct Library {
    getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const InfoRaw,
        *mut *mut InfoRaw,
    ) -> c_int,
    freeinfo: unsafe extern "C" fn(*mut InfoRaw),
    dupinfo: unsafe extern "C" fn(*const InfoRaw) -> *mut InfoRaw,
    fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    version: unsafe extern "C" fn() -> u32,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The newest of a name's versions, which `dlsym` gives: a library of 2.x has older ones beside it,
/// for programs whose structures are shorter than those that it allocates.
fn find(handle: *mut c_void, file: &CStr, name: &'static CStr) -> Result<*mut c_void, LoadError> {
    // SAFETY: an open library, and a name that ends with a zero.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    match symbol.is_null() {
        true => Err(LoadError::Lacks(file_name(file), name.to_str().unwrap_or("function"))),
        false => Ok(symbol),
    }
}

/// # Safety
/// - `F` is the type of the function that `symbol` points to.
unsafe fn function<F: Copy>(symbol: *mut c_void) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: a function pointer is a pointer (asserted), and the caller vouches for its type.
    unsafe { transmute_copy(&symbol) }
}

impl Library {
    /// Loads it, or finds it loaded.
    pub fn load(file: &CStr) -> Result<Library, LoadError> {
        let _standard = StandardHeld::new();
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: a name that ends with a zero; the library's initialisers are trusted, as those of
        // a library that is linked.
        let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
        if handle.is_null() {
            return Err(LoadError::Missing(file_name(file), reason(file)));
        }
        // SAFETY: each of these names has had its type since libfabric 1.0; what has changed is the
        // length of structures, which the library allocates itself.
        let library = unsafe {
            Library {
                getinfo: function(find(handle, file, c"fi_getinfo")?),
                freeinfo: function(find(handle, file, c"fi_freeinfo")?),
                dupinfo: function(find(handle, file, c"fi_dupinfo")?),
                fabric: function(find(handle, file, c"fi_fabric")?),
                version: function(find(handle, file, c"fi_version")?),
                strerror: function(find(handle, file, c"fi_strerror")?),
            }
        };
        match library.version() {
            version if version < OLDEST => Err(LoadError::Old(version)),
            _ => Ok(library),
        }
    }

    /// The library's own version.
    pub fn version(&self) -> u32 {
        // SAFETY: takes nothing.
        unsafe { (self.version)() }
    }

    /// The library's words for an errno or one of its own numbers.
    pub fn words(&self, code: i32) -> &'static CStr {
        // SAFETY: any number is taken.
        let text = unsafe { (self.strerror)(code) };
        // SAFETY: a text that ends with a zero and is never freed.
        if text.is_null() { c"unknown" } else { unsafe { CStr::from_ptr(text) } }
    }

    /// Empty hints.
    pub fn hints(&self) -> Result<Info, Code> {
        // SAFETY: null asks for an empty one.
        let raw = unsafe { (self.dupinfo)(core::ptr::null()) };
        if raw.is_null() { Err(Code(libc::ENOMEM)) } else { Ok(Info { raw, library: *self }) }
    }

    /// What the library offers for hints: a list, of which there is at least one.
    pub fn offers(&self, hints: &Info) -> Result<Info, Code> {
        let _standard = StandardHeld::new();
        let mut raw = core::ptr::null_mut();
        let version = self.version().min(n::API);
        let (none, flags) = (core::ptr::null(), 0);
        // SAFETY: hints that the library allocated.
        let code = unsafe { (self.getinfo)(version, none, none, flags, hints.raw, &mut raw) };
        Code::check(code)?;
        if raw.is_null() { Err(Code(n::ENODATA)) } else { Ok(Info { raw, library: *self }) }
    }

    /// A copy of one offer.
    ///
    /// # Safety
    /// - `raw` is an offer of this library that has not been freed.
    pub unsafe fn copy(&self, raw: *const InfoRaw) -> Result<Info, Code> {
        // SAFETY: as the caller vouches.
        let raw = unsafe { (self.dupinfo)(raw) };
        if raw.is_null() { Err(Code(libc::ENOMEM)) } else { Ok(Info { raw, library: *self }) }
    }

    /// Opens the network of an offer.
    pub(super) fn fabric_open(&self, info: &Info) -> Result<*mut FidFabric, Code> {
        let mut fabric = core::ptr::null_mut();
        // SAFETY: the attributes of an offer of this library.
        let code =
            unsafe { (self.fabric)(info.get().fabric_attr, &mut fabric, core::ptr::null_mut()) };
        Code::check(code)?;
        Ok(fabric)
    }
}

/// Hints, or offers; given back on drop.
#[derive(Debug)]
pub struct Info {
    raw: *mut InfoRaw,
    library: Library,
}

impl Info {
    /// The first of the list. Its parts are never null: the library allocates all of them.
    pub fn get(&self) -> &InfoRaw {
        // SAFETY: allocated by the library, and freed on drop alone.
        unsafe { &*self.raw }
    }

    /// The same, to be filled.
    pub fn get_mut(&mut self) -> &mut InfoRaw {
        // SAFETY: as above.
        unsafe { &mut *self.raw }
    }

    /// For calls.
    pub fn as_ptr(&self) -> *mut InfoRaw {
        self.raw
    }

    /// Asks for a provider by name.
    pub fn set_provider(&mut self, name: &[u8]) {
        // SAFETY: a part of hints, which the library frees with `free`, as `strndup` wants it.
        unsafe {
            let copy = libc::strndup(name.as_ptr().cast(), name.len());
            (*self.get().fabric_attr).prov_name = copy;
        }
    }

    /// Asks for a domain by name.
    pub fn set_domain(&mut self, name: &CStr) {
        // SAFETY: as above.
        unsafe { (*self.get().domain_attr).name = libc::strdup(name.as_ptr()) };
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: allocated by the library, and freed once.
        unsafe { (self.library.freeinfo)(self.raw) };
    }
}

/// A text of an offer; empty where there is none.
///
/// # Safety
/// - `text` is null, or a text that ends with a zero and lives as long as `'a`.
pub unsafe fn text<'a>(text: *const c_char) -> &'a CStr {
    // SAFETY: as the caller vouches.
    if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } }
}

#[cfg(test)]
mod tests {

    use super::*;
    use std::string::ToString;

    #[test]
    fn missing_library_is_one_sentence() {
        let why = Reason::end(b"invalid ELF header");
        let text = LoadError::Missing(file_name(FILE), why).to_string();
        assert!(text.contains("libfabric.so.1") && text.lines().count() == 1, "{text}");
        assert!(text.ends_with("(invalid ELF header); the package libfabric1 has it"), "{text}");
        let text = LoadError::Old(n::version(1, 4)).to_string();
        assert!(text.contains("its API is 1.4"), "{text}");
    }

    /// A file that is there may want another that is not.
    #[test]
    fn loader_says_why_and_names_the_file_only_if_it_is_another() {
        let of = |said| words_behind(c"/opt/libfabric.so.1", said).to_string();
        assert_eq!(of(c"/opt/libfabric.so.1: file too short"), "file too short");
        let other = c"libnl-3.so.200: cannot open shared object file: No such file or directory";
        assert_eq!(of(other), other.to_str().unwrap());
        assert_eq!(of(c""), "");
    }

    #[cfg(not(miri))]
    #[test]
    fn file_that_is_no_library_is_refused_with_the_loaders_words() {
        let refused = |file| Library::load(file).unwrap_err().to_string();
        let (missing, there) = (refused(c"/none-such.so"), refused(c"/proc/version"));
        assert!(missing.ends_with("No such file or directory)"), "{missing}");
        assert!(!there.contains("No such file") && !there.ends_with("()"), "{there}");
    }
}
