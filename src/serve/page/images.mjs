// Images of a message: read from files, made smaller if they are large, and kept as data URLs.

/** Files larger than this are made smaller: a request with the whole conversation has to fit the server. */
const LARGE_BYTES = 1 << 20;
/** The longer side of a picture that was made smaller, in pixels. */
const SIDE = 2048;
/** The formats that the server reads. Other pictures are converted. */
const READ = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

/** The image files among some files. */
export const imagesAmong = (files) => [...files].filter(({ type }) => type.startsWith("image/"));

/** True for the data URL of an image, as `read` makes them. */
export const isImageUrl = (text) => /^data:image\/[a-z+.-]+;base64,[A-Za-z0-9+/]+=*$/.test(text);

/** The data URL of an image file. Throws an `Error` if it is no image. */
export async function read(file) {
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name} is not an image that this browser can read.`);
  }
  if (file.size <= LARGE_BYTES && READ.includes(file.type)) {
    picture.close();
    return urlOf(file);
  }
  const by = Math.min(1, SIDE / Math.max(picture.width, picture.height));
  const size = [picture.width, picture.height].map((side) => Math.max(1, Math.round(side * by)));
  const canvas = new OffscreenCanvas(...size);
  canvas.getContext("2d").drawImage(picture, 0, 0, ...size);
  picture.close();
  return urlOf(await canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 }));
}

function urlOf(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
